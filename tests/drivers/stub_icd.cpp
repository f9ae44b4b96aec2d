// An OpenCL 1.2 driver for tests: one GPU device that runs on the host, and that fails on demand.
//
// An ICD loader (ocl-icd, Khronos) loads this library and calls it through the dispatch table at its end. A program is
// compiled by a C++ compiler: the prelude below defines the OpenCL C that Yosegi writes for GPUs, the program's text
// follows, and an entry for every kernel closes it. A queue is a thread that runs its commands in order. The work-items
// of a group are fibers where the program has barriers, and turns of a loop where it has none. `__local` arrays and the
// place of the running item are static variables of the program: kernels run one at a time in a process, and threads
// that share the groups of a launch have a copy of the program each.
//
// Environment (see tests/stub_driver.py, which sets it):
//   STUB_ICD_FAULTS    the control file, read at every build and every launch; no file or an empty one: no fault
//   STUB_ICD_NAME      a suffix of the platform's and the device's name
//   STUB_ICD_VERSION   the driver's version; 1.0 without it
//   STUB_ICD_UNIFIED   0: the device reports that it has memory of its own
//   STUB_ICD_COMPILER  the C++ compiler; c++ without it
//   STUB_ICD_CACHE     a folder that keeps compiled programs
//
// A line of the control file is `<where> <what> <which>`; the first line that matches counts:
//   where   build: compiling a program from source. run: a launch of one of the program's kernels.
//   what    segfault | abort | hang | exit (status 3) | memory (allocates up to 64 GB, then aborts)
//           error or error:<code> (an OpenCL error; build: -11, run: -59)
//           wrong (the first element of the last buffer that a kernel may write is changed after it has run; build: in
//           every launch of the program, also when it is loaded from its binary)
//   which   every <n>: each n-th build or launch, counted over all processes by the length of the file
//           `<control file>.build` or `.run`. hash <n>: programs whose source's FNV-1a hash is a multiple of n.
//           containing <text>: programs whose source contains the text.

#include <atomic>
#include <condition_variable>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char** environ;

namespace {

// The prelude of every program ---------------------------------------------------------------------------------------

const char* const PRELUDE = R"PRELUDE(
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
struct half { ushort bits; };
#define restrict __restrict
#define __kernel static
#define kernel static
#define __global
#define global
#define __private
#define cl_khr_fp64 1
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI 3.14159265358979323846
#define M_PI_F 3.14159265358979323846f
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define DBL_MAX __DBL_MAX__
#define DBL_MIN __DBL_MIN__
#define DBL_EPSILON __DBL_EPSILON__

namespace stub {
struct Place { size_t item[3], group[3], items[3], groups[3], offset[3]; };
}
extern "C" {
__attribute__((visibility("default"))) stub::Place stub_place;
__attribute__((visibility("default"))) void (*stub_wait)(void*);
__attribute__((visibility("default"))) void* stub_fibers;
#ifdef STUB_WRONG
__attribute__((visibility("default"))) extern const int stub_wrong = 1;
#endif
}
static inline size_t get_local_id(uint d) { return stub_place.item[d]; }
static inline size_t get_group_id(uint d) { return stub_place.group[d]; }
static inline size_t get_local_size(uint d) { return stub_place.items[d]; }
static inline size_t get_num_groups(uint d) { return stub_place.groups[d]; }
static inline size_t get_global_offset(uint d) { return stub_place.offset[d]; }
static inline size_t get_global_size(uint d) { return stub_place.groups[d] * stub_place.items[d]; }
static inline size_t get_global_id(uint d) {
    return stub_place.offset[d] + stub_place.group[d] * stub_place.items[d] + stub_place.item[d];
}
static inline void barrier(int) { stub_wait(stub_fibers); }
static inline void mem_fence(int) {}

// Bits and conversions
namespace stub {
template <class To, class From> static inline To as(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline float from_half(ushort bits) {
    const uint sign = (uint)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) return as<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000 : 0));
    if (rest >= 0x400) return as<float>(sign | (rest << 13) + (112u << 23));
    const float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}
static inline ushort to_half(float x) {
    const uint bits = as<uint>(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return sign | 0x7e00 | (rest >> 13 & 0x3ff);
    if (rest >= 0x477ff000) return sign | 0x7c00;
    if (rest < 0x38800000) return sign | (as<uint>(as<float>(rest) + 0.5f) - 0x3f000000);
    return sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
}
}
#define STUB_TYPES(F) F(char) F(uchar) F(short) F(ushort) F(int) F(uint) F(long) F(ulong) F(float) F(double)
#define STUB_TYPE(T) \
    template <class X> static inline T convert_##T(X x) { return (T)x; } \
    template <class X> static inline T as_##T(X x) { return stub::as<T>(x); }
STUB_TYPES(STUB_TYPE)
static inline float vload_half(size_t at, const half* p) { return stub::from_half(p[at].bits); }
static inline void vstore_half_rte(float x, size_t at, half* p) { p[at].bits = stub::to_half(x); }
static inline void vstore_half(float x, size_t at, half* p) { p[at].bits = stub::to_half(x); }

// Vectors: copied, and taken apart
namespace stub {
template <class T> struct Two { union { struct { T x, y; }; struct { T s0, s1; }; struct { T lo, hi; };
                                        struct { T even, odd; }; }; };
template <class T, int AT, int STEP> struct Part {
    T lanes[4];
    inline operator Two<T>() const { Two<T> made; made.x = lanes[AT]; made.y = lanes[AT + STEP]; return made; }
    inline void operator=(Two<T> from) { lanes[AT] = from.x; lanes[AT + STEP] = from.y; }
};
template <class T> struct Four { union { struct { T x, y, z, w; }; struct { T s0, s1, s2, s3; };
                                         Part<T, 0, 1> lo; Part<T, 2, 1> hi;
                                         Part<T, 0, 2> even; Part<T, 1, 2> odd; }; };
template <class V> static inline V loaded(const void* from) {
    V made;
    __builtin_memcpy(&made, from, sizeof made);
    return made;
}
}
#define STUB_VECTOR(T) \
    typedef stub::Two<T> T##2; \
    typedef stub::Four<T> T##4; \
    static inline T##2 vload2(size_t at, const T* p) { return stub::loaded<T##2>(p + 2 * at); } \
    static inline T##4 vload4(size_t at, const T* p) { return stub::loaded<T##4>(p + 4 * at); } \
    static inline void vstore2(T##2 x, size_t at, T* p) { __builtin_memcpy(p + 2 * at, &x, sizeof x); } \
    static inline void vstore4(T##4 x, size_t at, T* p) { __builtin_memcpy(p + 4 * at, &x, sizeof x); }
STUB_TYPES(STUB_VECTOR)

// Functions. Those of doubles are libm's own.
#define STUB_ONE(F) F(exp) F(exp2) F(expm1) F(log) F(log2) F(log10) F(log1p) F(sqrt) F(cbrt) F(sin) F(cos) F(tan) \
    F(asin) F(acos) F(atan) F(sinh) F(cosh) F(tanh) F(asinh) F(acosh) F(atanh) F(erf) F(erfc) F(tgamma) F(lgamma) \
    F(fabs) F(floor) F(ceil) F(trunc) F(rint) F(round)
#define STUB_TWO(F) F(pow) F(fmod) F(hypot) F(atan2) F(copysign) F(nextafter) F(fmin) F(fmax) F(fdim)
#define STUB_OF_ONE(NAME) \
    extern "C" double NAME(double); \
    static inline float NAME(float x) { return __builtin_##NAME##f(x); }
#define STUB_OF_TWO(NAME) \
    extern "C" double NAME(double, double); \
    static inline float NAME(float x, float y) { return __builtin_##NAME##f(x, y); }
STUB_ONE(STUB_OF_ONE)
STUB_TWO(STUB_OF_TWO)
extern "C" double fma(double, double, double);
extern "C" double ldexp(double, int);
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
#define mad(x, y, z) ((x) * (y) + (z))
template <class T> static inline T rsqrt(T x) { return 1 / sqrt(x); }
template <class T> static inline T stub_min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T stub_max(T a, T b) { return a < b ? b : a; }
#define STUB_ORDER(T) \
    static inline T min(T a, T b) { return stub_min(a, b); } \
    static inline T max(T a, T b) { return stub_max(a, b); } \
    static inline T clamp(T x, T a, T b) { return stub_min(stub_max(x, a), b); }
STUB_TYPES(STUB_ORDER)
template <class T> static inline int isnan(T x) { return x != x; }
template <class T> static inline int isinf(T x) { return __builtin_isinf(x) != 0; }
template <class T> static inline int isfinite(T x) { return __builtin_isfinite(x); }
template <class T> static inline int signbit(T x) { return __builtin_signbit(x) != 0; }
template <class T, class M> static inline T select(T a, T b, M mask) { return mask ? b : a; }
template <class M> static inline int all(M mask) { return mask < 0; }
template <class M> static inline int any(M mask) { return mask < 0; }

// Kernels, as the driver calls them
namespace stub {
template <class T> struct Parameter { enum { POINTS = 0, WRITES = 0 }; };
template <class T> struct Parameter<T*> { enum { POINTS = 1, WRITES = 1 }; };
template <class T> struct Parameter<const T*> { enum { POINTS = 1, WRITES = 0 }; };

static inline void spoil(float& x) { x = x > -1e6f && x < 1e6f ? x + 1 : 1; }
static inline void spoil(double& x) { x = x > -1e6 && x < 1e6 ? x + 1 : 1; }
static inline void spoil(ushort& x) { x ^= 0x4000; }
static inline void spoil(short& x) { x ^= 0x4000; }
static inline void spoil(half& x) { x.bits ^= 0x4000; }
static inline void spoil(char& x) { x ^= 1; }
static inline void spoil(uchar& x) { x ^= 1; }
template <class T> static inline void spoil(T& x) { *(uchar*)&x ^= 1; }
template <class P, bool WRITES> struct Spoil { static inline void at(void*) {} };
template <class P> struct Spoil<P, true> {
    static inline void at(void* slot) { if (*(P*)slot) spoil(**(P*)slot); }
};

template <unsigned... I> struct Numbers {};
template <unsigned N, unsigned... I> struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I> struct Count<0, I...> { typedef Numbers<I...> All; };

struct Entry {
    const char* name;
    unsigned count;
    const unsigned* sizes;
    const char* points;
    void (*once)(void**);                    // an item
    void (*groups)(void**, size_t, size_t);  // the items of the groups from one number to another
    void (*spoiled)(void**);
};
template <auto F> struct Of;
template <class... P, void (*F)(P...)> struct Of<F> {
    static constexpr unsigned sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
    static constexpr char points[sizeof...(P) + 1] = {(char)Parameter<P>::POINTS..., 0};
    static constexpr int last() {
        const char writes[] = {(char)Parameter<P>::WRITES..., 0};
        for (int n = sizeof...(P); n--;)
            if (writes[n]) return n;
        return -1;
    }
    template <unsigned... I> static inline void call(void** slots, Numbers<I...>) { F(*(P*)slots[I]...); }
    static void once(void** slots) { call(slots, typename Count<sizeof...(P)>::All()); }
    static void groups(void** slots, size_t from, size_t to) {
        Place& at = stub_place;
        for (; from < to; from++) {
            at.group[0] = from % at.groups[0];
            at.group[1] = from / at.groups[0] % at.groups[1];
            at.group[2] = from / at.groups[0] / at.groups[1];
            for (at.item[2] = 0; at.item[2] < at.items[2]; at.item[2]++)
            for (at.item[1] = 0; at.item[1] < at.items[1]; at.item[1]++)
            for (at.item[0] = 0; at.item[0] < at.items[0]; at.item[0]++) once(slots);
        }
    }
    template <unsigned... I> static inline void spoil_last(void** slots, Numbers<I...>) {
        (Spoil<P, (int)I == last()>::at(slots[I]), ...);
    }
    static void spoiled(void** slots) { spoil_last(slots, typename Count<sizeof...(P)>::All()); }
    static constexpr Entry entry(const char* name) {
        return {name, sizeof...(P), sizes, points, once, groups, spoiled};
    }
};
}
#line 1 "program.cl"
)PRELUDE";

// These are the prelude's.
struct Place {
    size_t item[3], group[3], items[3], groups[3], offset[3];
};
struct Entry {
    const char* name;
    unsigned count;
    const unsigned* sizes;
    const char* points;
    void (*once)(void**);                    // an item
    void (*groups)(void**, size_t, size_t);  // the items of the groups from one number to another
    void (*spoiled)(void**);
};

// OpenCL's types and constants ---------------------------------------------------------------------------------------

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef uint64_t cl_bits;

enum : cl_int {
    SUCCESS = 0,
    DEVICE_NOT_FOUND = -1,
    ALLOCATION_FAILURE = -4,
    OUT_OF_RESOURCES = -5,
    PROFILING_NOT_AVAILABLE = -7,
    BUILD_FAILURE = -11,
    FAILED_EVENTS = -14,
    NO_ARG_INFO = -19,
    INVALID_VALUE = -30,
    INVALID_DEVICE = -33,
    INVALID_BINARY = -42,
    INVALID_PROGRAM_EXECUTABLE = -45,
    INVALID_KERNEL_NAME = -46,
    INVALID_ARG_INDEX = -49,
    INVALID_ARG_VALUE = -50,
    INVALID_ARG_SIZE = -51,
    INVALID_KERNEL_ARGS = -52,
    INVALID_WORK_DIMENSION = -53,
    INVALID_WORK_GROUP_SIZE = -54,
    INVALID_OPERATION = -59,
    INVALID_BUFFER_SIZE = -61,
    INVALID_GLOBAL_WORK_SIZE = -63,
};
const cl_bits GPU = 4, PROFILED = 2;
const cl_bits USE_HOST_PTR = 8, COPY_HOST_PTR = 32;
const size_t MOST_ITEMS = 256, MOST_THREADS = 8;

extern void* const DISPATCH[];

// Every object that the loader sees begins with the dispatch table.
struct Object {
    void* const* dispatch = DISPATCH;
    std::atomic<int> references{1};
};
struct Platform : Object {};
struct Device : Object {};
struct Context : Object {
    std::vector<intptr_t> properties;
};
struct Command;
struct Event;
struct Queue : Object {
    Context* context = nullptr;
    cl_bits properties = 0;
    pid_t process = getpid();
    bool has_thread = false, is_busy = false, is_closed = false;
    cl_int failure = SUCCESS;
    std::deque<Command*> commands;
};
struct Event : Object {
    Queue* queue = nullptr;
    cl_uint command = 0;
    std::atomic<cl_int> status{3};  // 3 queued, 2 submitted, 1 running, 0 complete, or an error
    std::atomic<cl_ulong> times[4] = {};
};
struct Memory : Object {
    Context* context = nullptr;
    cl_bits flags = 0;
    size_t size = 0;
    char* bytes = nullptr;
    void* host = nullptr;
};
// A program's shared object in memory.
struct Loaded {
    void* library;
    Place* place;
    void** fibers;
    std::vector<const Entry*> entries;
};
struct Program : Object {
    Context* context = nullptr;
    std::string source, object, log, options;
    cl_int status = -1;  // of the build: none yet
    bool is_binary = false, has_barriers = false, is_wrong = false;
    std::vector<Loaded> copies;  // one for each thread that has run it; a built program has at least one
    bool is_built() const { return !copies.empty(); }
    const std::vector<const Entry*>& entries() const { return copies[0].entries; }
};
struct Argument {
    bool is_set = false;
    Memory* memory = nullptr;
    std::vector<char> bytes;
};
struct Kernel : Object {
    Program* program = nullptr;
    size_t number = 0;  // among the program's
    std::vector<Argument> arguments;
    const Entry* entry() const { return program->entries()[number]; }
};
struct Command {
    std::function<cl_int()> work;
    Event* event = nullptr;
    std::vector<Event*> before;
};

Platform platform;
Device device;
// Never destroyed: threads of queues wait on them when the process ends.
std::mutex& state = *new std::mutex;
std::mutex& launching = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;

template <class T> T* retained(T* object) {
    if (object) object->references++;
    return object;
}

void destroy(Context*) {}
void destroy(Queue*);
void destroy(Event*);
void destroy(Memory*);
void destroy(Program*);
void destroy(Kernel*);
template <class T> void released(T* object) {
    if (object && --object->references == 0) destroy(object);
}

// Holds on to an object for as long as a command needs it.
template <class T> struct Held {
    T* object;
    explicit Held(T* object) : object(retained(object)) {}
    Held(const Held& other) : object(retained(other.object)) {}
    Held& operator=(const Held&) = delete;
    ~Held() { released(object); }
    T* operator->() const { return object; }
};

const char* setting(const char* name, const char* otherwise) {
    const char* found = getenv(name);
    return found && *found ? found : otherwise;
}

cl_ulong now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// Answers of the clGet*Info functions.
struct Answer {
    size_t room;
    void* to;
    size_t* size;
    cl_int bytes(const void* from, size_t count) const {
        if (size) *size = count;
        if (!to) return SUCCESS;
        if (room < count) return INVALID_VALUE;
        memcpy(to, from, count);
        return SUCCESS;
    }
    template <class T> cl_int value(T x) const { return bytes(&x, sizeof x); }
    cl_int text(const std::string& x) const { return bytes(x.c_str(), x.size() + 1); }
};

// Faults -------------------------------------------------------------------------------------------------------------

uint64_t fnv(const std::string& text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
    return hash;
}

bool read_file(const std::string& path, std::string& text) {
    FILE* file = fopen(path.c_str(), "rb");
    if (!file) return false;
    char part[65536];
    size_t got;
    text.clear();
    while ((got = fread(part, 1, sizeof part, file)) > 0) text.append(part, got);
    fclose(file);
    return true;
}

bool write_file(const std::string& path, const std::string& text) {
    FILE* file = fopen(path.c_str(), "wb");
    if (!file) return false;
    const bool is_written = fwrite(text.data(), 1, text.size(), file) == text.size();
    return fclose(file) == 0 && is_written;
}

// The number of this build or launch among those of all processes: every one makes the file a byte longer.
long counted(const std::string& path) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return 0;
    const long place = write(file, ".", 1) == 1 ? (long)lseek(file, 0, SEEK_CUR) : 0;
    close(file);
    return place;
}

// What is to happen to this build or launch: the second word of the control file's line that matches, or nothing.
std::string fault_of(const std::string& where, const std::string& source) {
    const std::string path = setting("STUB_ICD_FAULTS", "");
    std::string text, found;
    if (path.empty() || !read_file(path, text)) return "";
    long number = -1;
    for (size_t start = 0; start < text.size();) {
        size_t end = text.find('\n', start);
        if (end == std::string::npos) end = text.size();
        const std::string line = text.substr(start, end - start);
        start = end + 1;
        char place[16], what[32], which[16];
        int read = 0;
        if (sscanf(line.c_str(), "%15s %31s %15s %n", place, what, which, &read) != 3 || where != place) continue;
        const std::string rest = line.substr(read), kind = which;
        bool matches = false;
        if (kind == "every") {  // counted even if an earlier line matches
            if (number < 0) number = counted(path + "." + where);
            const long n = atol(rest.c_str());
            matches = n > 0 && number % n == 0;
        } else if (kind == "hash") {
            const long n = atol(rest.c_str());
            matches = n > 0 && fnv(source) % n == 0;
        } else if (kind == "containing") {
            matches = !rest.empty() && source.find(rest) != std::string::npos;
        }
        if (matches && found.empty()) found = what;
    }
    return found;
}

[[noreturn]] void take_all_memory() {
    const size_t part = size_t(64) << 20, most = size_t(64) << 30;
    for (size_t taken = 0; taken < most; taken += part) {
        void* made = mmap(nullptr, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) break;
        for (size_t at = 0; at < part; at += 4096) static_cast<volatile char*>(made)[at] = 1;
    }
    fputs("terminate called after throwing an instance of 'std::bad_alloc'\n", stderr);
    abort();
}

// Does what ends or stops the process. Returns for everything else.
void suffer(const std::string& fault) {
    if (fault == "segfault" || fault == "abort") fprintf(stderr, "stub driver: %s in process %d\n", fault.c_str(), (int)getpid());
    if (fault == "segfault") {
        volatile int* volatile nowhere = nullptr;
        *nowhere = 1;
    }
    if (fault == "abort") abort();
    if (fault == "exit") _exit(3);
    if (fault == "memory") take_all_memory();
    while (fault == "hang") pause();
}

bool is_error(const std::string& fault, cl_int otherwise, cl_int& code) {
    if (fault.compare(0, 5, "error") != 0) return false;
    code = fault.size() > 6 ? atoi(fault.c_str() + 6) : otherwise;
    return true;
}

// Fibers -------------------------------------------------------------------------------------------------------------

// The items of a group take turns: each runs to a barrier or to its end, then the next one does.
struct Fibers {
    enum State : char { ABSENT, DONE, RUNNING, WAITING };
    static const size_t STACK = size_t(128) << 10;

    ucontext_t starts[MOST_ITEMS];
    jmp_buf inside[MOST_ITEMS], outside;
    State states[MOST_ITEMS];
    size_t items, running;
    const Entry* body;
    void** slots;
    Place* place;

    // Goes on with an item, and with the scheduler behind the last one.
    [[noreturn]] __attribute__((noinline)) void go(size_t item) {
        if (item == items) _longjmp(outside, 1);
        Place& at = *place;
        running = item;
        if (item == 0) at.item[0] = at.item[1] = at.item[2] = 0;
        else if (++at.item[0] == at.items[0]) {
            at.item[0] = 0;
            if (++at.item[1] == at.items[1]) at.item[1] = 0, at.item[2]++;
        }
        const bool is_new = states[item] == ABSENT;
        states[item] = RUNNING;
        if (is_new) setcontext(&starts[item]);
        _longjmp(inside[item], 1);
    }

    __attribute__((noinline)) void leave(State as) {
        states[running] = as;
        if (_setjmp(inside[running]) == 0) go(running + 1);
    }

    __attribute__((noinline)) void round() {
        if (_setjmp(outside) == 0) go(0);
    }

    static void wait(void* fibers) { static_cast<Fibers*>(fibers)->leave(WAITING); }

    static void live(unsigned high, unsigned low) {
        auto* own = reinterpret_cast<Fibers*>(uintptr_t(high) << 32 | low);
        for (;;) {
            own->body->once(own->slots);
            own->leave(DONE);
        }
    }

    bool prepare(size_t item) {
        if (states[item] != ABSENT) return true;
        ucontext_t& start = starts[item];
        void* stack = start.uc_stack.ss_sp;
        if (!stack) stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) return false;
        getcontext(&start);
        start.uc_stack.ss_sp = stack;
        start.uc_stack.ss_size = STACK - item % 64 * 832;  // tops that do not share the lines of a cache
        start.uc_link = nullptr;
        const auto self = reinterpret_cast<uintptr_t>(this);
        makecontext(&start, reinterpret_cast<void (*)()>(live), 2, unsigned(self >> 32), unsigned(self));
        return true;
    }

    // Runs the groups from one number to another. False if some items of a group ended while others waited.
    bool run(const Entry* entry, void** arguments, Place* at, size_t from, size_t to) {
        body = entry;
        slots = arguments;
        place = at;
        items = at->items[0] * at->items[1] * at->items[2];
        for (size_t n = 0; n < items; n++)
            if (!prepare(n)) return false;
        for (; from < to; from++) {
            at->group[0] = from % at->groups[0];
            at->group[1] = from / at->groups[0] % at->groups[1];
            at->group[2] = from / at->groups[0] / at->groups[1];
            for (size_t waiting = items; waiting;) {
                round();
                waiting = 0;
                for (size_t n = 0; n < items; n++) waiting += states[n] == WAITING;
                if (waiting && waiting < items) {
                    for (size_t n = 0; n < items; n++) states[n] = ABSENT;
                    fprintf(stderr, "stub_icd: some items of a group ended while others waited at a barrier\n");
                    return false;
                }
            }
        }
        return true;
    }
};

// By threads. Zeros: no fiber is there, and no stack.
Fibers fibers[MOST_THREADS];

// Programs -----------------------------------------------------------------------------------------------------------

bool has_barriers(const std::string& source) { return source.find("barrier(") != std::string::npos; }

bool is_word(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// OpenCL C as C++, and the names of the kernels: `__local` and `__constant` make variables static, but not pointers.
std::string translated(const std::string& source, std::vector<std::string>& kernels) {
    std::string made;
    const bool unrolls = has_barriers(source);  // products, which are worth the compiler's time
    for (size_t at = 0; at < source.size();) {
        if (!is_word(source[at])) {
            made += source[at++];
            continue;
        }
        size_t end = at;
        while (end < source.size() && is_word(source[end])) end++;
        const std::string word = source.substr(at, end - at);
        at = end;
        const bool is_local = word == "__local" || word == "local", is_constant = word == "__constant";
        if (is_local || is_constant) {
            const size_t stop = source.find_first_of(";[=,){", end);
            if (source.substr(end, stop - end).find('*') == std::string::npos) made += "static ";
            if (is_constant) made += "const";
            continue;
        }
        if (word == "pragma" && unrolls && source.compare(end, 8, " unroll\n") == 0) {
            made += "pragma GCC unroll 64";
            at = end + 7;
            continue;
        }
        if (word == "pragma" && unrolls && source.compare(end, 8, " unroll ") == 0) {
            made += "pragma GCC unroll ";
            at = end + 8;
            continue;
        }
        made += word;
        if (word != "__kernel" && word != "kernel") continue;
        size_t open = source.find('(', end);
        while (open != std::string::npos) {
            size_t last = open;
            while (last > end && !is_word(source[last - 1])) last--;
            size_t first = last;
            while (first > end && is_word(source[first - 1])) first--;
            const std::string name = source.substr(first, last - first);
            if (name != "__attribute__") {
                kernels.push_back(name);
                break;
            }
            int depth = 0;
            do {
                if (open == source.size()) break;
                depth += (source[open] == '(') - (source[open] == ')');
                open++;
            } while (depth);
            open = source.find('(', open);
        }
    }
    return made;
}

// A program's C++ as a shared object. False, with the compiler's words in `log`, if it does not compile.
bool compiled(const std::string& code, const std::vector<std::string>& options, std::string& object, std::string& log) {
    std::string key = code;
    for (const std::string& option : options) key += "\n" + option;
    char hash[32];
    snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(fnv(key)));
    const std::string cache = setting("STUB_ICD_CACHE", ""), kept = cache + "/" + hash + ".so";
    if (!cache.empty() && read_file(kept, object)) return true;
    std::string folder = std::string(setting("TMPDIR", "/tmp")) + "/stub_icd.XXXXXX";
    if (!mkdtemp(&folder[0])) {
        log = "there is no folder for temporary files";
        return false;
    }
    const std::string text = folder + "/program.cpp", made = folder + "/program.so", words = folder + "/log";
    std::vector<std::string> call = {setting("STUB_ICD_COMPILER", "c++")};
    call.insert(call.end(), options.begin(), options.end());
    call.insert(call.end(), {text, "-o", made, "-lm"});
    std::vector<char*> arguments;
    for (std::string& part : call) arguments.push_back(&part[0]);
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, words.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child = 0;
    int status = -1;
    if (!write_file(text, code)) {
        log = "the program cannot be written to " + text;
    } else if (posix_spawnp(&child, call[0].c_str(), &actions, nullptr, arguments.data(), environ) != 0) {
        log = "there is no compiler " + call[0];
    } else {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
        read_file(words, log);
    }
    posix_spawn_file_actions_destroy(&actions);
    const bool is_made = status == 0 && read_file(made, object);
    if (is_made && !cache.empty()) {
        const std::string whole = kept + "." + std::to_string(getpid()) + "." + std::to_string(now());
        if (write_file(whole, object)) rename(whole.c_str(), kept.c_str());
    }
    for (const std::string& file : {text, made, words}) unlink(file.c_str());
    rmdir(folder.c_str());
    return is_made;
}

// Loads a copy of a program. The file's name is new in this process: the linker knows libraries by their names.
bool load(Program* program) {
    static std::atomic<int> number{0};
    const std::string path = std::string(setting("TMPDIR", "/tmp")) + "/stub_icd." + std::to_string(getpid()) + "." +
                             std::to_string(now()) + "." + std::to_string(number++) + ".so";
    void* library = write_file(path, program->object) ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) {
        const char* reason = dlerror();
        program->log += reason ? reason : "it cannot be loaded";
    }
    unlink(path.c_str());
    if (!library) return false;
    Loaded copy = {library, static_cast<Place*>(dlsym(library, "stub_place")),
                   static_cast<void**>(dlsym(library, "stub_fibers")), {}};
    *static_cast<void (**)(void*)>(dlsym(library, "stub_wait")) = Fibers::wait;
    for (auto* entry = static_cast<const Entry*>(dlsym(library, "stub_entries")); entry->name; entry++)
        copy.entries.push_back(entry);
    program->is_wrong = dlsym(library, "stub_wrong") != nullptr;
    program->has_barriers = has_barriers(program->source);
    program->copies.reserve(MOST_THREADS);  // others may be reading the first one
    program->copies.push_back(copy);
    return true;
}

std::vector<std::string> compiler_options(const std::string& given, bool is_wrong) {
    std::vector<std::string> made = {
        "-std=c++17", "-w", "-fpermissive", "-O2", "-ffp-contract=off", "-fwrapv", "-fsigned-char",
        "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-fno-asynchronous-unwind-tables",
        "-fvisibility=hidden", "-fPIC", "-shared", "-nostdlib", "-pipe"};
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) made.insert(made.end(), {"-mfma", "-mavx2"});
#endif
    if (is_wrong) made.push_back("-DSTUB_WRONG");
    for (size_t at = 0; (at = given.find_first_not_of(' ', at)) != std::string::npos;) {
        const size_t end = std::min(given.find(' ', at), given.size());
        const std::string option = given.substr(at, end - at);
        if (option.compare(0, 2, "-D") == 0 && option.size() > 2) made.push_back(option);
        at = end;
    }
    return made;
}

// A binary: a word, three numbers, the source, the shared object.
const std::string MAGIC = "STUBICD1";

std::string binary_of(const Program* program) {
    const uint64_t numbers[] = {program->source.size(), program->object.size(), fnv(program->source + program->object)};
    return MAGIC + std::string(reinterpret_cast<const char*>(numbers), sizeof numbers) + program->source +
           program->object;
}

bool from_binary(const std::string& binary, Program* program) {
    uint64_t numbers[3];
    const size_t head = MAGIC.size() + sizeof numbers;
    if (binary.size() < head || binary.compare(0, MAGIC.size(), MAGIC) != 0) return false;
    memcpy(numbers, binary.data() + MAGIC.size(), sizeof numbers);
    const size_t rest = binary.size() - head;
    if (numbers[0] > rest || numbers[1] != rest - numbers[0] || fnv(binary.substr(head)) != numbers[2]) return false;
    program->source = binary.substr(head, numbers[0]);
    program->object = binary.substr(head + numbers[0]);
    return true;
}

// Queues -------------------------------------------------------------------------------------------------------------

void mark(Event* event, cl_int status, int time) {
    event->times[time] = now();
    std::lock_guard<std::mutex> lock(state);
    event->status = status;
    changed.notify_all();
}

void wait_for(Event* event) {
    if (event->status <= 0) return;  // without the lock, which is nobody's in a forked child
    std::unique_lock<std::mutex> lock(state);
    changed.wait(lock, [event] { return event->status <= 0; });
}

void serve(Queue* queue) {
    std::unique_lock<std::mutex> lock(state);
    for (;;) {
        changed.wait(lock, [queue] { return !queue->commands.empty() || queue->is_closed; });
        if (queue->commands.empty()) break;
        Command* command = queue->commands.front();
        queue->commands.pop_front();
        queue->is_busy = true;
        lock.unlock();
        for (Event* event : command->before) {
            wait_for(event);
            released(event);
        }
        mark(command->event, 1, 2);
        const cl_int result = command->work();
        Event* event = command->event;
        delete command;  // and with it what the command held on to
        mark(event, result, 3);
        released(event);
        lock.lock();
        queue->is_busy = false;
        if (result != SUCCESS) queue->failure = result;
        changed.notify_all();
    }
    lock.unlock();
    released(queue->context);
    delete queue;
}

cl_int finish(Queue* queue) {
    std::unique_lock<std::mutex> lock(state);
    changed.wait(lock, [queue] { return queue->commands.empty() && !queue->is_busy; });
    const cl_int result = queue->failure;
    queue->failure = SUCCESS;
    return result;
}

struct Waits {
    cl_uint count;
    Event* const* events;
};

// Puts work into a queue; the caller's event, if it wants one, is for this work.
cl_int put(Queue* queue, cl_uint kind, Waits waits, Event** event, bool is_blocking, std::function<cl_int()> work) {
    auto* made = new Event;
    made->queue = retained(queue);
    made->command = kind;
    made->times[0] = made->times[1] = now();
    if (event) *event = retained(made);
    auto* command = new Command{std::move(work), made, {}};
    for (cl_uint n = 0; n < waits.count; n++) command->before.push_back(retained(waits.events[n]));
    Held<Event> own(made);
    {
        std::lock_guard<std::mutex> lock(state);
        queue->commands.push_back(command);
        if (!queue->has_thread) std::thread(serve, queue).detach();
        queue->has_thread = true;
        changed.notify_all();
    }
    if (!is_blocking) return SUCCESS;
    wait_for(made);
    return made->status < 0 ? made->status.load() : SUCCESS;
}

// Runs a kernel: what a queue does with a launch.
cl_int launch(Program* program, size_t number, const Place& place, void** arguments, bool is_wrong) {
    std::lock_guard<std::mutex> lock(launching);
    const size_t groups = place.groups[0] * place.groups[1] * place.groups[2];
    size_t count = 1;
    if (groups * place.items[0] * place.items[1] * place.items[2] >= 1 << 14)
        count = std::min<size_t>({std::max(1u, std::thread::hardware_concurrency()), MOST_THREADS, groups});
    while (program->copies.size() < count)
        if (!load(program)) count = program->copies.size();
    std::atomic<size_t> next{0};
    std::atomic<bool> is_right{true};
    const size_t share = std::max<size_t>(1, groups / (8 * count));
    auto work = [&](size_t thread) {
        const Loaded& copy = program->copies[thread];
        const Entry* entry = copy.entries[number];
        *copy.place = place;
        *copy.fibers = &fibers[thread];
        for (size_t from; is_right && (from = next.fetch_add(share)) < groups;) {
            const size_t to = std::min(from + share, groups);
            if (!program->has_barriers) entry->groups(arguments, from, to);
            else if (!fibers[thread].run(entry, arguments, copy.place, from, to)) is_right = false;
        }
    };
    std::vector<std::thread> others;
    for (size_t n = 1; n < count; n++) others.emplace_back(work, n);
    work(0);
    for (std::thread& other : others) other.join();
    if (is_wrong || program->is_wrong) program->entries()[number]->spoiled(arguments);
    return is_right ? SUCCESS : OUT_OF_RESOURCES;
}

// The end of objects -------------------------------------------------------------------------------------------------

void destroy(Queue* queue) {
    if (getpid() != queue->process) return;  // a forked child has the queue, but not its thread
    std::unique_lock<std::mutex> lock(state);
    queue->is_closed = true;
    changed.notify_all();
    if (queue->has_thread) return;
    lock.unlock();
    released(queue->context);
    delete queue;
}

void destroy(Event* event) {
    released(event->queue);
    delete event;
}

void destroy(Memory* memory) {
    if (!(memory->flags & USE_HOST_PTR)) free(memory->bytes);
    released(memory->context);
    delete memory;
}

void destroy(Program* program) {
    for (const Loaded& copy : program->copies) dlclose(copy.library);
    released(program->context);
    delete program;
}

void destroy(Kernel* kernel) {
    released(kernel->program);
    delete kernel;
}

// OpenCL's functions -------------------------------------------------------------------------------------------------

namespace cl {

cl_int get_platforms(cl_uint room, Platform** to, cl_uint* count) {
    if (count) *count = 1;
    if (to && room) *to = &platform;
    return SUCCESS;
}

cl_int platform_info(Platform*, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x0900: return answer.text("FULL_PROFILE");
        case 0x0901: return answer.text("OpenCL 1.2 stub");
        case 0x0902: return answer.text(std::string("Stub OpenCL") + setting("STUB_ICD_NAME", ""));
        case 0x0903: return answer.text("Yosegi's tests");
        case 0x0904: return answer.text("cl_khr_icd cl_khr_fp64");
        case 0x0920: return answer.text("STUB");
        default: return INVALID_VALUE;
    }
}

cl_int get_devices(Platform*, cl_bits type, cl_uint room, Device** to, cl_uint* count) {
    const bool is_found = type & (GPU | 1) || type == 0xFFFFFFFF;
    if (count) *count = is_found;
    if (!is_found) return DEVICE_NOT_FOUND;
    if (to && room) *to = &device;
    return SUCCESS;
}

cl_int device_info(Device*, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    const cl_ulong all = cl_ulong(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    const size_t items[3] = {MOST_ITEMS, MOST_ITEMS, MOST_ITEMS};
    switch (what) {
        case 0x1000: return answer.value(GPU);
        case 0x1001: return answer.value<cl_uint>(0x57B);   // vendor
        case 0x1002: return answer.value<cl_uint>(2);       // compute units: the same everywhere, and so the kernels
        case 0x1003: return answer.value<cl_uint>(3);       // work-item dimensions
        case 0x1004: return answer.value(MOST_ITEMS);       // work-group size
        case 0x1005: return answer.bytes(items, sizeof items);
        case 0x1006: case 0x1007: case 0x1008: case 0x1009: case 0x100A: case 0x100B:  // preferred vector widths
        case 0x1036: case 0x1037: case 0x1038: case 0x1039: case 0x103A: case 0x103B:  // native ones
            return answer.value<cl_uint>(1);
        case 0x1034: case 0x103C: return answer.value<cl_uint>(0);  // no arithmetic on halves
        case 0x100C: return answer.value<cl_uint>(1000);  // MHz
        case 0x100D: return answer.value<cl_uint>(64);    // address bits
        case 0x100E: case 0x100F: return answer.value<cl_uint>(0);  // images
        case 0x1010: return answer.value<cl_ulong>(all / 2);        // largest allocation
        case 0x1011: case 0x1012: case 0x1013: case 0x1014: case 0x1015:
            return answer.value<size_t>(0);  // sizes of images
        case 0x1016: return answer.value<cl_uint>(0);     // images
        case 0x1017: return answer.value<size_t>(1024);   // bytes of a kernel's parameters
        case 0x1018: return answer.value<cl_uint>(0);     // samplers
        case 0x1019: return answer.value<cl_uint>(1024);  // bits that addresses are aligned to
        case 0x101A: return answer.value<cl_uint>(128);
        case 0x101B: return answer.value<cl_bits>(0xBF);  // single: all of it, correctly rounded division and root too
        case 0x1032: return answer.value<cl_bits>(0x3F);  // double
        case 0x1033: return answer.value<cl_bits>(0);     // half
        case 0x101C: return answer.value<cl_uint>(2);     // a cache that is read and written
        case 0x101D: return answer.value<cl_uint>(64);
        case 0x101E: return answer.value<cl_ulong>(1 << 20);
        case 0x101F: return answer.value<cl_ulong>(all);
        case 0x1020: return answer.value<cl_ulong>(1 << 16);  // constant memory
        case 0x1021: return answer.value<cl_uint>(8);
        case 0x1022: return answer.value<cl_uint>(1);         // local memory of its own
        case 0x1023: return answer.value<cl_ulong>(1 << 16);
        case 0x1024: return answer.value<cl_uint>(0);  // error correction
        case 0x1025: return answer.value<size_t>(1);   // nanoseconds of the timer
        case 0x1026: case 0x1027: case 0x1028: return answer.value<cl_uint>(1);  // little-endian, available, compiles
        case 0x1029: return answer.value<cl_bits>(1);         // runs kernels
        case 0x102A: return answer.value<cl_bits>(PROFILED);  // of queues
        case 0x102B: return answer.text(std::string("Stub GPU") + setting("STUB_ICD_NAME", ""));
        case 0x102C: return answer.text("Yosegi's tests");
        case 0x102D: return answer.text(setting("STUB_ICD_VERSION", "1.0"));
        case 0x102E: return answer.text("FULL_PROFILE");
        case 0x102F: return answer.text("OpenCL 1.2 stub");
        case 0x1030: return answer.text("cl_khr_fp64");
        case 0x1031: return answer.value(&platform);
        case 0x1035: return answer.value<cl_uint>(strcmp(setting("STUB_ICD_UNIFIED", "1"), "0") != 0);
        case 0x103D: return answer.text("OpenCL C 1.2 stub");
        case 0x103E: return answer.value<cl_uint>(1);  // links
        case 0x103F: return answer.text("");           // kernels that are built in
        case 0x1040: case 0x1041: return answer.value<size_t>(0);
        case 0x1042: return answer.value<void*>(nullptr);  // no parent
        case 0x1043: return answer.value<cl_uint>(0);
        case 0x1044: return answer.value<intptr_t>(0);
        case 0x1045: return answer.value<cl_bits>(0);
        case 0x1046: return answer.value<intptr_t>(0);
        case 0x1047: return answer.value<cl_uint>(1);
        case 0x1048: return answer.value<cl_uint>(1);
        case 0x1049: return answer.value<size_t>(1 << 20);  // what kernels may print
        default: return INVALID_VALUE;
    }
}

cl_int keep_device(Device*) { return SUCCESS; }

template <class T> cl_int retain(T* object) {
    retained(object);
    return SUCCESS;
}

template <class T> cl_int release(T* object) {
    released(object);
    return SUCCESS;
}

template <class T> T* made(T* object, cl_int* error, cl_int code = SUCCESS) {
    if (error) *error = code;
    return object;
}

Context* create_context(const intptr_t* properties, cl_uint, Device* const*, void*, void*, cl_int* error) {
    auto* context = new Context;
    for (; properties && *properties; properties += 2)
        context->properties.insert(context->properties.end(), {properties[0], properties[1]});
    if (!context->properties.empty()) context->properties.push_back(0);
    return made(context, error);
}

Context* create_context_of_type(const intptr_t* properties, cl_bits, void* a, void* b, cl_int* error) {
    return create_context(properties, 1, nullptr, a, b, error);
}

cl_int context_info(Context* context, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x1080: return answer.value<cl_uint>(context->references);
        case 0x1081: return answer.value(&device);
        case 0x1082: return answer.bytes(context->properties.data(), context->properties.size() * sizeof(intptr_t));
        case 0x1083: return answer.value<cl_uint>(1);
        default: return INVALID_VALUE;
    }
}

Queue* create_queue(Context* context, Device*, cl_bits properties, cl_int* error) {
    if (properties & ~PROFILED) return made<Queue>(nullptr, error, -35);  // nothing but in order
    auto* queue = new Queue;
    queue->context = retained(context);
    queue->properties = properties;
    return made(queue, error);
}

cl_int queue_info(Queue* queue, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x1090: return answer.value(queue->context);
        case 0x1091: return answer.value(&device);
        case 0x1092: return answer.value<cl_uint>(queue->references);
        case 0x1093: return answer.value(queue->properties);
        default: return INVALID_VALUE;
    }
}

Memory* create_buffer(Context* context, cl_bits flags, size_t size, void* host, cl_int* error) {
    if (size == 0) return made<Memory>(nullptr, error, INVALID_BUFFER_SIZE);
    if (!host != !(flags & (USE_HOST_PTR | COPY_HOST_PTR))) return made<Memory>(nullptr, error, -37);
    void* bytes = flags & USE_HOST_PTR ? host : nullptr;
    if (!bytes && posix_memalign(&bytes, 128, size) != 0) return made<Memory>(nullptr, error, ALLOCATION_FAILURE);
    if (flags & COPY_HOST_PTR) memcpy(bytes, host, size);
    auto* memory = new Memory;
    memory->context = retained(context);
    memory->flags = flags;
    memory->size = size;
    memory->bytes = static_cast<char*>(bytes);
    memory->host = flags & USE_HOST_PTR ? host : nullptr;
    return made(memory, error);
}

cl_int memory_info(Memory* memory, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x1100: return answer.value<cl_uint>(0x10F0);  // a buffer
        case 0x1101: return answer.value(memory->flags);
        case 0x1102: return answer.value(memory->size);
        case 0x1103: return answer.value(memory->host);
        case 0x1104: return answer.value<cl_uint>(0);
        case 0x1105: return answer.value<cl_uint>(memory->references);
        case 0x1106: return answer.value(memory->context);
        case 0x1107: return answer.value<void*>(nullptr);
        case 0x1108: return answer.value<size_t>(0);
        default: return INVALID_VALUE;
    }
}

Program* create_program(Context* context, cl_uint count, const char** texts, const size_t* lengths, cl_int* error) {
    auto* program = new Program;
    program->context = retained(context);
    for (cl_uint n = 0; n < count; n++)
        program->source += lengths && lengths[n] ? std::string(texts[n], lengths[n]) : std::string(texts[n]);
    return made(program, error);
}

Program* create_program_from_binary(
    Context* context, cl_uint, Device* const*, const size_t* lengths, const unsigned char** binaries, cl_int* statuses,
    cl_int* error) {
    auto* program = new Program;
    program->context = retained(context);
    program->is_binary = true;
    const bool is_whole = from_binary(std::string(reinterpret_cast<const char*>(binaries[0]), lengths[0]), program);
    if (statuses) statuses[0] = is_whole ? SUCCESS : INVALID_BINARY;
    if (is_whole) return made(program, error);
    released(program);
    return made<Program>(nullptr, error, INVALID_BINARY);
}

cl_int build_program(
    Program* program, cl_uint, Device* const*, const char* options, void (*notify)(Program*, void*), void* data) {
    program->options = options ? options : "";
    program->log.clear();
    cl_int result = BUILD_FAILURE;
    if (program->is_binary) {
        if (program->is_built() || load(program)) result = SUCCESS;
    } else if (program->is_built()) {
        result = SUCCESS;
    } else {
        const std::string fault = fault_of("build", program->source);
        suffer(fault);
        if (is_error(fault, BUILD_FAILURE, result)) {
            program->log = "the control file asks for this failure";
        } else {
            std::vector<std::string> kernels;
            std::string code = PRELUDE + translated(program->source, kernels);
            code += "\nextern \"C\" __attribute__((visibility(\"default\"))) const stub::Entry stub_entries[] = {";
            for (const std::string& name : kernels) code += "stub::Of<" + name + ">::entry(\"" + name + "\"), ";
            code += "{}};\n";
            const auto chosen = compiler_options(program->options, fault == "wrong");
            if (compiled(code, chosen, program->object, program->log) && load(program)) result = SUCCESS;
        }
    }
    program->status = result == SUCCESS ? 0 : -2;
    if (notify) notify(program, data);
    return result;
}

cl_int unload_compiler(void*) { return SUCCESS; }

cl_int program_info(Program* program, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x1160: return answer.value<cl_uint>(program->references);
        case 0x1161: return answer.value(program->context);
        case 0x1162: return answer.value<cl_uint>(1);
        case 0x1163: return answer.value(&device);
        case 0x1164: return answer.text(program->is_binary ? "" : program->source);
        case 0x1165: return answer.value<size_t>(program->object.empty() ? 0 : binary_of(program).size());
        case 0x1166: {
            if (size) *size = sizeof(char*);
            if (!to) return SUCCESS;
            if (room < sizeof(char*)) return INVALID_VALUE;
            char* place = *static_cast<char**>(to);
            const std::string binary = program->object.empty() ? "" : binary_of(program);
            if (place) memcpy(place, binary.data(), binary.size());
            return SUCCESS;
        }
        default: break;
    }
    if (!program->is_built()) return what == 0x1167 || what == 0x1168 ? INVALID_PROGRAM_EXECUTABLE : INVALID_VALUE;
    std::string names;
    for (const Entry* entry : program->entries()) names += (names.empty() ? "" : ";") + std::string(entry->name);
    if (what == 0x1167) return answer.value(program->entries().size());
    return what == 0x1168 ? answer.text(names) : INVALID_VALUE;
}

cl_int build_info(Program* program, Device*, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x1181: return answer.value(program->status);
        case 0x1182: return answer.text(program->options);
        case 0x1183: return answer.text(program->log);
        case 0x1184: return answer.value<cl_uint>(program->is_built() ? 4 : 0);  // an executable
        default: return INVALID_VALUE;
    }
}

Kernel* kernel_of(Program* program, size_t number) {
    auto* kernel = new Kernel;
    kernel->program = retained(program);
    kernel->number = number;
    kernel->arguments.resize(kernel->entry()->count);
    return kernel;
}

Kernel* create_kernel(Program* program, const char* name, cl_int* error) {
    if (!program->is_built()) return made<Kernel>(nullptr, error, INVALID_PROGRAM_EXECUTABLE);
    for (size_t n = 0; n < program->entries().size(); n++)
        if (strcmp(program->entries()[n]->name, name) == 0) return made(kernel_of(program, n), error);
    return made<Kernel>(nullptr, error, INVALID_KERNEL_NAME);
}

cl_int create_kernels(Program* program, cl_uint room, Kernel** to, cl_uint* count) {
    if (!program->is_built()) return INVALID_PROGRAM_EXECUTABLE;
    if (count) *count = program->entries().size();
    if (!to) return SUCCESS;
    if (room < program->entries().size()) return INVALID_VALUE;
    for (size_t n = 0; n < program->entries().size(); n++) *to++ = kernel_of(program, n);
    return SUCCESS;
}

cl_int set_argument(Kernel* kernel, cl_uint number, size_t size, const void* value) {
    if (number >= kernel->entry()->count) return INVALID_ARG_INDEX;
    if (size != kernel->entry()->sizes[number]) return INVALID_ARG_SIZE;
    Argument& argument = kernel->arguments[number];
    if (kernel->entry()->points[number]) {
        argument.memory = value ? *static_cast<Memory* const*>(value) : nullptr;
    } else if (value) {
        argument.bytes.assign(static_cast<const char*>(value), static_cast<const char*>(value) + size);
    } else {
        return INVALID_ARG_VALUE;
    }
    argument.is_set = true;
    return SUCCESS;
}

cl_int kernel_info(Kernel* kernel, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x1190: return answer.text(kernel->entry()->name);
        case 0x1191: return answer.value<cl_uint>(kernel->entry()->count);
        case 0x1192: return answer.value<cl_uint>(kernel->references);
        case 0x1193: return answer.value(kernel->program->context);
        case 0x1194: return answer.value(kernel->program);
        case 0x1195: return answer.text("");
        default: return INVALID_VALUE;
    }
}

cl_int kernel_argument_info(Kernel*, cl_uint, cl_uint, size_t, void*, size_t*) { return NO_ARG_INFO; }

cl_int group_info(Kernel*, Device*, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    const size_t none[3] = {0, 0, 0};
    switch (what) {
        case 0x11B0: return answer.value(MOST_ITEMS);
        case 0x11B1: return answer.bytes(none, sizeof none);
        case 0x11B2: case 0x11B4: return answer.value<cl_ulong>(0);  // local and private bytes
        case 0x11B3: return answer.value<size_t>(32);                // preferred multiple
        default: return INVALID_VALUE;
    }
}

cl_int wait_for_events(cl_uint count, Event* const* events) {
    cl_int result = SUCCESS;
    for (cl_uint n = 0; n < count; n++) {
        wait_for(events[n]);
        if (events[n]->status < 0) result = FAILED_EVENTS;
    }
    return result;
}

cl_int event_info(Event* event, cl_uint what, size_t room, void* to, size_t* size) {
    const Answer answer{room, to, size};
    switch (what) {
        case 0x11D0: return answer.value(event->queue);
        case 0x11D1: return answer.value(event->command);
        case 0x11D2: return answer.value<cl_uint>(event->references);
        case 0x11D3: return answer.value<cl_int>(event->status);
        case 0x11D4: return answer.value(event->queue->context);
        default: return INVALID_VALUE;
    }
}

cl_int event_times(Event* event, cl_uint what, size_t room, void* to, size_t* size) {
    if (!(event->queue->properties & PROFILED) || event->status != 0) return PROFILING_NOT_AVAILABLE;
    if (what < 0x1280 || what > 0x1283) return INVALID_VALUE;
    return Answer{room, to, size}.value<cl_ulong>(event->times[what - 0x1280]);
}

cl_int flush(Queue*) { return SUCCESS; }

cl_int read_buffer(
    Queue* queue, Memory* memory, cl_uint is_blocking, size_t offset, size_t size, void* to, cl_uint count,
    Event* const* before, Event** event) {
    if (offset > memory->size || size > memory->size - offset) return INVALID_VALUE;
    const Held<Memory> held(memory);
    return put(queue, 0x11F3, {count, before}, event, is_blocking, [=] {
        memcpy(to, held->bytes + offset, size);
        return SUCCESS;
    });
}

cl_int write_buffer(
    Queue* queue, Memory* memory, cl_uint is_blocking, size_t offset, size_t size, const void* from, cl_uint count,
    Event* const* before, Event** event) {
    if (offset > memory->size || size > memory->size - offset) return INVALID_VALUE;
    const Held<Memory> held(memory);
    return put(queue, 0x11F4, {count, before}, event, is_blocking, [=] {
        memcpy(held->bytes + offset, from, size);
        return SUCCESS;
    });
}

cl_int copy_buffer(
    Queue* queue, Memory* from, Memory* to, size_t start, size_t offset, size_t size, cl_uint count,
    Event* const* before, Event** event) {
    if (start > from->size || size > from->size - start) return INVALID_VALUE;
    if (offset > to->size || size > to->size - offset) return INVALID_VALUE;
    const Held<Memory> source(from), target(to);
    return put(queue, 0x11F5, {count, before}, event, false, [=] {
        memmove(target->bytes + offset, source->bytes + start, size);
        return SUCCESS;
    });
}

cl_int fill_buffer(
    Queue* queue, Memory* memory, const void* pattern, size_t length, size_t offset, size_t size, cl_uint count,
    Event* const* before, Event** event) {
    if (offset > memory->size || size > memory->size - offset) return INVALID_VALUE;
    if (!length || offset % length || size % length) return INVALID_VALUE;
    const std::string bytes(static_cast<const char*>(pattern), length);
    const Held<Memory> held(memory);
    return put(queue, 0x1207, {count, before}, event, false, [=] {
        char* to = held->bytes + offset;
        if (bytes.size() == 1) memset(to, bytes[0], size);
        else for (size_t at = 0; at < size; at += bytes.size()) memcpy(to + at, bytes.data(), bytes.size());
        return SUCCESS;
    });
}

cl_int nothing() { return SUCCESS; }

void* map_buffer(
    Queue* queue, Memory* memory, cl_uint is_blocking, cl_bits, size_t offset, size_t size, cl_uint count,
    Event* const* before, Event** event, cl_int* error) {
    if (offset > memory->size || size > memory->size - offset) return made<void>(nullptr, error, INVALID_VALUE);
    const cl_int code = put(queue, 0x11FB, {count, before}, event, is_blocking, nothing);
    return made<void>(code == SUCCESS ? memory->bytes + offset : nullptr, error, code);
}

cl_int unmap(Queue* queue, Memory*, void*, cl_uint count, Event* const* before, Event** event) {
    return put(queue, 0x11FD, {count, before}, event, false, nothing);
}

cl_int marker_after(Queue* queue, cl_uint count, Event* const* before, Event** event) {
    return put(queue, 0x11FE, {count, before}, event, false, nothing);
}

cl_int barrier_after(Queue* queue, cl_uint count, Event* const* before, Event** event) {
    return put(queue, 0x1205, {count, before}, event, false, nothing);
}

cl_int marker(Queue* queue, Event** event) { return marker_after(queue, 0, nullptr, event); }
cl_int wait_in_queue(Queue* queue, cl_uint count, Event* const* before) {
    return barrier_after(queue, count, before, nullptr);
}
cl_int barrier(Queue* queue) { return barrier_after(queue, 0, nullptr, nullptr); }

cl_int launch_kernel(
    Queue* queue, Kernel* kernel, cl_uint dimensions, const size_t* offset, const size_t* global, const size_t* local,
    cl_uint count, Event* const* before, Event** event) {
    if (dimensions < 1 || dimensions > 3) return INVALID_WORK_DIMENSION;
    Place place = {};
    for (cl_uint d = 0; d < 3; d++) {
        const size_t whole = d < dimensions ? global[d] : 1;
        if (!whole) return INVALID_GLOBAL_WORK_SIZE;
        size_t part = d < dimensions && local ? local[d] : 1;
        if (!local && d == 0)
            for (size_t n = 1; n <= 64; n++) part = whole % n ? part : n;
        if (!part || whole % part) return INVALID_WORK_GROUP_SIZE;
        place.items[d] = part;
        place.groups[d] = whole / part;
        place.offset[d] = d < dimensions && offset ? offset[d] : 0;
    }
    if (place.items[0] * place.items[1] * place.items[2] > MOST_ITEMS) return INVALID_WORK_GROUP_SIZE;
    std::vector<Held<Memory>> buffers;
    for (const Argument& argument : kernel->arguments) {
        if (!argument.is_set) return INVALID_KERNEL_ARGS;
        buffers.emplace_back(argument.memory);
    }
    const std::string fault = fault_of("run", kernel->program->source);
    cl_int code;
    if (is_error(fault, INVALID_OPERATION, code)) return code;
    const Held<Kernel> held(kernel);
    return put(queue, 0x11F0, {count, before}, event, false, [=, arguments = kernel->arguments] {
        suffer(fault);
        std::vector<void*> pointers, values;
        for (const Argument& argument : arguments)
            pointers.push_back(argument.memory ? argument.memory->bytes : nullptr);
        for (size_t n = 0; n < arguments.size(); n++)
            values.push_back(arguments[n].bytes.empty() ? &pointers[n] : (void*)arguments[n].bytes.data());
        (void)buffers;
        return launch(held->program, held->number, place, values.data(), fault == "wrong");
    });
}

cl_int launch_task(Queue* queue, Kernel* kernel, cl_uint count, Event* const* before, Event** event) {
    const size_t one = 1;
    return launch_kernel(queue, kernel, 1, nullptr, &one, &one, count, before, event);
}

// What the driver does not have.
cl_int no() { return INVALID_OPERATION; }
template <class... A> void* none(A... arguments) {
    intptr_t all[] = {arguments...};
    if (auto* error = reinterpret_cast<cl_int*>(all[sizeof...(A) - 1])) *error = INVALID_OPERATION;
    return nullptr;
}
void* no_address(void*, const char*) { return nullptr; }
void* no_memory(Context*, cl_bits, size_t, cl_uint) { return nullptr; }
void no_return() {}

}  // namespace cl

}  // namespace

// What the loader finds ----------------------------------------------------------------------------------------------

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED cl_int clIcdGetPlatformIDsKHR(cl_uint room, Platform** to, cl_uint* count) {
    return cl::get_platforms(room, to, count);
}

EXPORTED cl_int clGetPlatformInfo(Platform* of, cl_uint what, size_t room, void* to, size_t* size) {
    return cl::platform_info(of, what, room, to, size);
}

EXPORTED void* clGetExtensionFunctionAddress(const char* name) {
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) return (void*)cl::get_platforms;
    if (strcmp(name, "clGetPlatformInfo") == 0) return (void*)cl::platform_info;
    return nullptr;
}

namespace {

#define HAS(function) (void*)(function)
#define NO (void*)cl::no
typedef intptr_t N;

// The order is that of `cl_icd_dispatch` in Khronos' cl_icd.h.
void* const DISPATCH[] = {
    // OpenCL 1.0
    HAS(cl::get_platforms), HAS(cl::platform_info), HAS(cl::get_devices), HAS(cl::device_info),
    HAS(cl::create_context), HAS(cl::create_context_of_type), HAS(cl::retain<Context>), HAS(cl::release<Context>),
    HAS(cl::context_info),
    HAS(cl::create_queue), HAS(cl::retain<Queue>), HAS(cl::release<Queue>), HAS(cl::queue_info), NO,
    HAS(cl::create_buffer), HAS((cl::none<N, N, N, N, N, N, N, N>)), HAS((cl::none<N, N, N, N, N, N, N, N, N, N>)),
    HAS(cl::retain<Memory>), HAS(cl::release<Memory>), NO, HAS(cl::memory_info), NO,
    HAS((cl::none<N, N, N, N, N>)), NO, NO, NO,  // samplers
    HAS(cl::create_program), HAS(cl::create_program_from_binary), HAS(cl::retain<Program>), HAS(cl::release<Program>),
    HAS(cl::build_program), HAS(cl::unload_compiler), HAS(cl::program_info), HAS(cl::build_info),
    HAS(cl::create_kernel), HAS(cl::create_kernels), HAS(cl::retain<Kernel>), HAS(cl::release<Kernel>),
    HAS(cl::set_argument), HAS(cl::kernel_info), HAS(cl::group_info),
    HAS(cl::wait_for_events), HAS(cl::event_info), HAS(cl::retain<Event>), HAS(cl::release<Event>),
    HAS(cl::event_times),
    HAS(cl::flush), HAS(finish), HAS(cl::read_buffer), HAS(cl::write_buffer), HAS(cl::copy_buffer),
    NO, NO, NO, NO, NO,  // images
    HAS(cl::map_buffer), HAS((cl::none<N, N, N, N, N, N, N, N, N, N, N, N>)), HAS(cl::unmap),
    HAS(cl::launch_kernel), HAS(cl::launch_task), NO,
    HAS(cl::marker), HAS(cl::wait_in_queue), HAS(cl::barrier),
    HAS(clGetExtensionFunctionAddress),
    HAS((cl::none<N, N, N, N>)), HAS((cl::none<N, N, N, N, N, N>)), HAS((cl::none<N, N, N, N, N, N>)),
    HAS((cl::none<N, N, N, N>)), NO, NO, NO, NO, NO,  // OpenGL
    NO, HAS((cl::none<N, N, N, N>)), HAS((cl::none<N, N, N, N, N>)), HAS((cl::none<N, N, N, N, N>)), NO, NO,  // D3D10
    // OpenCL 1.1
    NO, HAS((cl::none<N, N, N, N, N>)), NO, HAS((cl::none<N, N>)), NO,
    NO, NO, NO,  // rectangles
    NO, HAS(cl::keep_device), HAS(cl::keep_device), HAS((cl::none<N, N, N>)),
    // OpenCL 1.2
    NO, HAS(cl::keep_device), HAS(cl::keep_device), HAS((cl::none<N, N, N, N, N, N>)), HAS((cl::none<N, N, N, N, N>)),
    NO, HAS((cl::none<N, N, N, N, N, N, N, N, N>)), HAS(cl::unload_compiler), HAS(cl::kernel_argument_info),
    HAS(cl::fill_buffer), NO, NO, HAS(cl::marker_after), HAS(cl::barrier_after), HAS(cl::no_address),
    HAS((cl::none<N, N, N, N, N, N>)),
    NO, HAS((cl::none<N, N, N, N>)), HAS((cl::none<N, N, N, N, N>)), HAS((cl::none<N, N, N, N, N>)),  // D3D11
    HAS((cl::none<N, N, N, N, N, N>)), NO, NO, NO, NO, NO,                                          // DX9
    HAS((cl::none<N, N, N, N, N, N>)), NO, NO, HAS((cl::none<N, N, N, N>)),                         // EGL
    // OpenCL 2.0
    HAS((cl::none<N, N, N, N>)), HAS((cl::none<N, N, N, N, N, N>)), NO, HAS(cl::no_memory), HAS(cl::no_return),
    NO, NO, NO, NO, NO, HAS((cl::none<N, N, N>)), NO, NO,
    NO,  // subgroups
    // OpenCL 2.1
    HAS((cl::none<N, N>)), HAS((cl::none<N, N, N, N>)), NO, NO, NO, NO, NO,
    // OpenCL 2.2
    NO, NO,
    // OpenCL 3.0
    HAS((cl::none<N, N, N, N, N, N>)), HAS((cl::none<N, N, N, N, N, N, N>)), NO,
};

}  // namespace
