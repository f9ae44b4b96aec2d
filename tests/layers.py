"""The layers of the package, top first, and what breaks them. A file may import only from files above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

LAYERS = (
    "errors", "_tensor.spellings", "_graph.decode", "_run.forks", "_tensor.dtype", "_tensor.precision", "_tensor.role",
    "_tensor.environment", "_tensor.html", "_tensor.tracebacks", "_tensor.options", "distributed.costs",
    "distributed.communicator", "distributed.fake", "distributed.mpi", "distributed.runtime", "distributed.worker",
    "distributed.actors",
    "_run.progress", "_run.memory.buffer", "_run.memory.pool", "_run.memory", "_tensor.node",
    "_tensor.origins", "_tensor.interchange", "_tensor.tensor", "_tensor.op", "_tensor.batch", "_tensor.composite",
    "_trace.tracing", "_trace.mistakes", "_graph.reference", "_run.shutdown", "_run.child", "_run.sysctl",
    "_tune.store", "_run.background", "_run.drivers", "_tune.timing", "_tune.comparison", "_tune.autotune",
    "_tune.records",
    "codegen.scalar.error_function", "codegen.c.matrix_unit", "codegen.c.functions",
    "codegen.c.dialect", "codegen.scalar.value", "codegen.scalar.complexes", "codegen.scalar.formulas",
    "codegen.scalar.halves", "codegen.scalar.primitives", "codegen.c.words", "codegen.c.builder",
    "codegen.scalar.access", "codegen.llvm.ir", "codegen.llvm.integers", "codegen.llvm.number",
    "codegen.llvm.slow_paths", "codegen.llvm.exponential", "codegen.llvm.logarithm", "codegen.llvm.trigonometric",
    "codegen.llvm.inverse", "codegen.llvm.power", "codegen.llvm.algebraic",
    "codegen.llvm.functions", "codegen.llvm.builder", "codegen.llvm.load_store", "ops.rules", "ops.elementwise",
    "ops.types", "ops.shape", "ops.reduce", "ops.creation", "ops.index_key", "ops.index", "ops.products", "ops.einsum",
    "ops.solves", "ops.decompositions", "ops.systems", "ops.linalg", "ops.ordering", "ops.sort",
    "ops.vectors", "ops.joins",
    "ops.layout", "ops.numeric", "ops.ranges", "ops.comparing", "ops.choosing", "ops.sets", "ops.statistics",
    "ops.counts", "ops.nans", "ops.fft", "ops.philox", "ops.erf", "ops.activation", "ops.distributions", "ops.draws",
    "ops.random", "ops.normal", "ops.linear", "ops.attention", "ops.loss", "ops.losses", "ops.windows", "ops.conv",
    "ops.gates", "ops.pool", "ops.resize", "ops.signal", "ops.polynomials", "ops.aliases", "ops.updates", "ops",
    "_tensor.tree", "_tensor.tree_code",
    "_tensor.files", "_trace.objects", "_trace.reverse", "_trace.recorded", "_trace.grad", "_trace.batching",
    "_trace.vmap", "_trace.along", "_trace.forward", "_trace.jacobian", "_trace.guarded", "_trace.custom",
    "_trace.shapes", "_trace.debug", "_graph.graph", "_trace.checkpoint", "_trace.control.bodies",
    "_trace.control.narrowing", "_trace.control.transforms", "_trace.control.scans", "_trace.control.branches",
    "_trace.control.loops", "_trace.control", "nn.module", "nn.training", "nn.summaries", "nn.ctc", "nn.init",
    "nn.layers.linear", "nn.layers.dropout", "nn.layers.norm", "nn.layers.activation", "nn.layers.conv",
    "nn.layers.pool", "nn.layers.attention", "nn.layers.transformer", "nn.layers.recurrent", "nn.layers", "nn",
    "optim.transform", "optim.schedules", "optim.pieces", "optim.rules", "optim.quasi_newton", "optim.scaling",
    "optim.optimizers", "optim", "training.loader", "training.checkpoints", "training.events", "training.curves",
    "training", "_graph.portable", "_graph.simplify", "_schedule.fuse", "_schedule.recompute", "_schedule.groups",
    "_schedule.order", "_schedule.kernels", "_schedule.portable_region", "_schedule", "_place.cost_model",
    "_graph.float64", "_tune.projection",
    "_tune.certificate", "_tune.bodies", "codegen.c.kernel_source", "codegen.c.packets", "codegen.c.loop_kernels",
    "codegen.scalar.folds", "codegen.scalar", "codegen.c.reductions",
    "codegen.c.copies", "codegen.c.moves", "codegen.c.stages", "codegen.c.indexing",
    "codegen.c.extremes", "codegen.c.cumulative", "codegen.c.elements", "codegen.c.repeats", "codegen.c.op_programs",
    "codegen.c.expressions", "codegen.c.spaces", "codegen.c.contractions", "codegen.c.frames", "codegen.c.naive",
    "codegen.c.product_frame", "codegen.c.shared_tiles", "codegen.c.fragments",
    "codegen.c.unit_tiles", "codegen.c.rowwise", "codegen.c.sliding",
    "codegen.c.fused_kernels", "codegen.c.attention", "codegen.c.unit_rows", "codegen.c.unit_attention",
    "codegen.c.unit_attention_gradient",
    "codegen.c",
    "codegen.llvm.thread_sleep", "codegen.llvm.thread_pool", "codegen.llvm.entry", "codegen.llvm.lanes",
    "codegen.llvm.folding", "codegen.llvm.einsum_products", "codegen.llvm.nest", "codegen.llvm.passes",
    "codegen.llvm.walk", "codegen.llvm.rows", "codegen.llvm.control", "codegen.llvm.moving", "codegen.llvm.indexing",
    "codegen.llvm.random_bits",
    "codegen.llvm.register_tiles", "codegen.llvm.small_products", "codegen.llvm.convolution", "codegen.llvm.signature",
    "codegen.llvm.projections", "codegen.llvm.fused_projections", "codegen.llvm.bfloat16_units",
    "codegen.llvm.product", "codegen.llvm.fused_product", "codegen.llvm.packing", "codegen.llvm.fused_stages",
    "codegen.llvm.jobs", "codegen.llvm.product_kernels", "codegen.llvm.minimal_filters",
    "codegen.llvm.depthwise",
    "codegen.llvm.winograd",
    "codegen.llvm.winograd_gradients", "codegen.llvm.pools",
    "codegen.llvm.blas_kernels",
    "codegen.llvm.blocking", "codegen.llvm.half_packing",
    "codegen.llvm", "codegen", "_run.device", "devices.kernel.faults",
    "devices.kernel.memory", "_run.health", "_run.trace", "_run.profile", "_place.candidates", "_tune.measurements",
    "_place.costs", "_tune.calibration", "_place.partition",
    "_place.forecast", "_place.mincut",
    "_place.labels", "_place.table", "_place.explain", "_place.planfile", "_place.certified", "_place.plan",
    "_place.place", "_place", "_graph.expand", "_graph", "devices.kernel.half_operands", "devices.kernel.matrices",
    "devices.kernel.convolutions",
    "devices.kernel.launching", "devices.kernel.work", "devices.kernel.measured", "devices.kernel.fused",
    "devices.kernel.regions", "devices.kernel.machine",
    "devices.kernel.qualification",
    "devices.kernel.device", "devices.kernel", "_run.run", "_run.snapshots", "_run.finite", "_tune.trial",
    "_tune.learn", "_tune",
    "_run.evaluate", "_run.api", "_run", "_trace.arguments", "_trace.traced_graph", "_trace.replayed", "_trace.jit",
    "_trace", "_tensor.info", "_tensor.protocols", "_tensor",
    "distributed.links", "distributed.layout", "distributed.dims", "distributed.propagate", "distributed.channel",
    "distributed.communication", "distributed.sequence",
    "distributed.buckets", "distributed.collectives", "distributed.lower", "distributed.parallel",
    "distributed.layers", "distributed.pipeline", "distributed.survival", "distributed", "devices.cpu.compiler",
    "devices.cpu.threads", "devices.cpu.callables", "devices.cpu.guard", "devices.cpu.probe",
    "devices.cpu.results", "devices.cpu.kernel", "devices.cpu.caches", "devices.cpu.operand_layout",
    "devices.cpu.product_calls",
    "devices.cpu.blas", "devices.cpu.blas_calls", "devices.cpu.workspace", "devices.cpu.winograd_calls",
    "devices.cpu.winograd_gradients", "devices.cpu.point_convolutions",
    "devices.cpu.depthwise_calls",
    "devices.cpu.column_products", "devices.cpu.weight_gradients", "devices.cpu.spread_convolutions",
    "devices.cpu.convolutions", "devices.cpu.pools", "devices.cpu.indexing", "devices.cpu.random_bits",
    "devices.cpu.transforms",
    "devices.cpu.half_calls", "devices.cpu.bfloat16_support", "devices.cpu.native_groups",
    "devices.cpu.control", "devices.cpu.reduced", "devices.cpu.clusters",
    "devices.cpu.sampling", "devices.cpu.variants", "devices.cpu.projections", "devices.cpu.tiered",
    "devices.cpu.limit", "devices.cpu.device", "devices.cpu", "devices.opencl.errors", "devices.opencl.dialect",
    "devices.opencl.library", "devices.opencl.cache", "devices.opencl.memory", "devices.opencl.launch",
    "devices.opencl.device", "devices.opencl.probe", "devices.opencl", "devices.cuda.errors",
    "devices.cuda.tensor_cores", "devices.cuda.dialect", "devices.cuda.cache", "devices.cuda.staging",
    "devices.cuda.memory", "devices.cuda.recording_layout", "devices.cuda.concurrency",
    "devices.cuda.launch", "devices.cuda.blas", "devices.cuda.cudnn", "devices.cuda.engines",
    "devices.cuda.convolutions", "devices.cuda.library_products",
    "devices.cuda.projections", "devices.cuda.fused_matmul", "devices.cuda.machine",
    "devices.cuda.library_ops", "devices.cuda.fourier", "devices.cuda.traffic", "devices.cuda.nccl",
    "devices.cuda.shared_memory",
    "devices.cuda.peers", "devices.cuda.exchange", "devices.cuda.regions", "devices.cuda.replay",
    "devices.cuda.probe", "devices.cuda.device", "devices.cuda", "devices.metal.dialect", "devices.metal.commands",
    "devices.metal.memory", "devices.metal.programs", "devices.metal.launch", "devices.metal.convolutions",
    "devices.metal.library",
    "devices.metal.replay", "devices.metal.device", "devices.metal",
    "devices.model.op_row", "devices.model.formulas", "devices.model.shapes", "devices.model.ports",
    "devices.model.translate",
    "devices.model.requests", "devices.model.errors", "devices.model.models", "devices.model.device",
    "devices.model.specimens", "devices.model.precisions", "devices.model.probe", "devices.model",
    "devices.coreml.library", "devices.coreml.op_row", "devices.coreml.elementwise", "devices.coreml.movement",
    "devices.coreml.reductions", "devices.coreml.windows", "devices.coreml.composites", "devices.coreml.ops",
    "devices.coreml.plan", "devices.coreml.compiler", "devices.coreml.device", "devices.coreml.probe",
    "devices.coreml", "devices.openvino.library", "devices.openvino.op_row", "devices.openvino.movement",
    "devices.openvino.elementwise", "devices.openvino.reductions", "devices.openvino.windows",
    "devices.openvino.composites", "devices.openvino.ops", "devices.openvino.compiler", "devices.openvino.device",
    "devices.openvino.probe", "devices.openvino", "devices", "tools.bench.timing", "tools.bench.document",
    "tools.bench.compare", "tools.bench.tables", "tools.bench.cases", "tools.bench.runners", "tools.bench.model_peers",
    "tools.bench.peers", "tools.bench.machine", "tools.bench.models", "tools.bench.programs", "tools.bench.regret",
    "tools.bench.suite", "tools.bench.analysis", "tools.bench", "tools.doctor", "tools.report.units",
    "tools.report.theme", "tools.report.contenders", "tools.report.digest", "tools.report.html", "tools.report.parts",
    "tools.report.charts", "tools.report.speed", "tools.report.standings", "tools.report.roofline",
    "tools.report.fusion", "tools.report.precision", "tools.report.changes", "tools.report.flow",
    "tools.report.placement", "tools.report.summary", "tools.report.appendix", "tools.report.page", "tools.report",
    "tools.launch_ray", "tools.launch", "tools.cli", "tools.fakes", "tools", "extend", "",
)  # fmt: skip

PEERS = frozenset({"tools.bench.peers", "tools.bench.model_peers", "tools.bench.machine"})
"""Files that name other libraries, some of which a device is built on too."""

DEVICE_NAMES = re.compile(r"\b(cpu|cuda|opencl|metal|coreml|openvino)\b", re.IGNORECASE)
"""Device names belong to `devices/`; elsewhere a device is asked, never named."""


def breaches(root: Path) -> Iterator[str]:
    """Everything in the package under `root` that breaks a rule."""
    for path in sorted(root.rglob("*.py")):
        module = _module(path.relative_to(root))
        if module not in LAYERS:
            yield f"{module}: has no place in the layers"
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for imported in _imports(tree, module, path.name == "__init__.py"):
            name = imported if imported in LAYERS else imported.rpartition(".")[0]
            if name in LAYERS and LAYERS.index(name) >= LAYERS.index(module) and name != module:
                yield f"{module or 'yosegi'}: imports {name}, which is below it"
        if not f"{module}.".startswith("ops."):
            for line in _named_ops(tree):
                yield f"{module or 'yosegi'}: compares the name of an op on line {line}; ask for its role"
        if not f"{module}.".startswith("devices.") and module not in PEERS:
            for word in _words(tree):
                yield f"{module or 'yosegi'}: names the device {word!r}"


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    package = module.split(".") if is_package else module.split(".")[:-1]
    only_for_types = _only_for_types(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in only_for_types:
            base = [p for p in package if p][: len([p for p in package if p]) - node.level + 1]
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                deeper = f"{source}.{alias.name}".strip(".")
                yield deeper if deeper in LAYERS else source
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "yosegi":
            source = (node.module or "").removeprefix("yosegi").strip(".")
            for alias in node.names:
                deeper = f"{source}.{alias.name}".strip(".")
                yield deeper if deeper in LAYERS else source
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "yosegi":
                    yield alias.name.removeprefix("yosegi").strip(".")


def _only_for_types(tree: ast.AST) -> set[int]:
    """The nodes under `if TYPE_CHECKING`, by identity."""
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {id(node) for guard in guards for node in ast.walk(guard)}


def _named_ops(tree: ast.AST) -> Iterator[int]:
    """The lines where the name of an op is compared with a text. A table of implementations by op is no comparison."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("op.name"):
            others = [c.elts if isinstance(c, (ast.Tuple, ast.List, ast.Set)) else [c] for c in node.comparators]
            if any(isinstance(c, ast.Constant) for each in others for c in each):
                yield node.lineno


def _words(tree: ast.AST) -> Iterator[str]:
    docstrings = {
        id(n.body[0].value)
        for n in ast.walk(tree)
        if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef)) and n.body and isinstance(n.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        for text in _texts(node):
            if id(node) not in docstrings:
                yield from DEVICE_NAMES.findall(text.replace("_", " "))


def _texts(node: ast.AST) -> Iterator[str]:
    """Every word a node of the syntax tree brings in: names, attributes, parameters, imports, strings."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, str):
            yield value
        elif isinstance(value, bytes):
            yield value.decode("latin-1")
