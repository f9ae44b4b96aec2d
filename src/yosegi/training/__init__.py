"""Training: checkpoints, a loader of data, event files, pictures of losses."""

from .checkpoints import Checkpoints
from .curves import save_curve
from .events import EventWriter
from .loader import Loader
