"""A matrix unit on the host: the functions of `codegen.matrix_unit` for the fibers of `emulation`.

Which element lies where is written here a second time, as the PTX ISA has it ("Matrix Fragments for mma.m16n8k16
with floating point type" and "for mma.m16n8k8", "ldmatrix"). Copies to shared memory happen when they are waited for,
not before, so that a wait that is missing shows. Packets that are not aligned, and matrices or words whose rows are in
the same banks of shared memory, are faults.
"""

from __future__ import annotations

WARPS = """
typedef unsigned long Place;
static Place place_of(const void* shared) { return (Place)shared; }
namespace warp {
struct Slot { float left[8], right[4], number; Place place; bool truth; };
static Slot slots[2][fibers::MOST];
static unsigned calls[fibers::MOST];
// One wait a call is enough: a slot is written again only after the call behind this one, which all have to reach.
static Slot& own() { return slots[calls[fibers::item] % 2][fibers::item]; }
static const Slot* of_all() {
    const Slot* first = slots[calls[fibers::item] % 2] + fibers::item / 32 * 32;
    calls[fibers::item]++;
    fibers::wait(fibers::IN_TEAM);
    return first;
}
static unsigned lane() { return fibers::item % 32; }
static float low_f16(unsigned word) { return from_half_bits((unsigned short)word); }
static float low_bf16(unsigned word) { return bits_as<float>(word << 16); }
static unsigned bits_f16(float x) { return half_bits(x); }
static unsigned bits_bf16(float x) { return bfloat_bits(x); }
static void load(unsigned (&words)[4], Place place, bool turned) {
    own().place = place;
    const Slot* all = of_all();
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        const unsigned short* rows[8];
        unsigned banks = 0;
        for (unsigned row = 0; row < 8; row++) {
            const Place at = all[matrix * 8 + row].place;
            rows[row] = (const unsigned short*)at;
            if (at % 16) fibers::fault = "a row of a matrix is not aligned";
            banks |= 1u << at / 16 % 8;
        }
        if (banks != 255) fibers::fault = "rows of a matrix in the same banks";
        const unsigned line = lane() / 4, pair = lane() % 4 * 2;
        const unsigned low = turned ? rows[pair][line] : rows[line][pair];
        const unsigned high = turned ? rows[pair + 1][line] : rows[line][pair + 1];
        words[matrix] = low | high << 16;
    }
}
template <class Low> static void multiply_add(
    float (&sums)[4], const unsigned (&left)[4], unsigned low, unsigned high, Low as_float) {
    for (unsigned i = 0; i < 8; i++) own().left[i] = as_float(left[i / 2] >> i % 2 * 16);
    for (unsigned i = 0; i < 4; i++) own().right[i] = as_float((i < 2 ? low : high) >> i % 2 * 16);
    const Slot* all = of_all();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane() / 4 + (i >= 2 ? 8 : 0), column = lane() % 4 * 2 + (i & 1);
        double sum = sums[i];
        for (unsigned k = 0; k < 16; k++) {
            const unsigned a = (k & 1) + (row >= 8 ? 2 : 0) + (k >= 8 ? 4 : 0), b = (k & 1) + (k >= 8 ? 2 : 0);
            sum += (double)all[row % 8 * 4 + k % 8 / 2].left[a] * all[column * 4 + k % 8 / 2].right[b];
        }
        sums[i] = (float)sum;
    }
}
// TF32 has the first 19 bits of a float; sums are cut off, not rounded.
static float tf32(float x) { return bits_as<float>(bits_as<unsigned>(x) & 0xffffe000u); }
static float cut_off(double x) {
    const float near = (float)x;
    return __builtin_fabs((double)near) <= __builtin_fabs(x) || x - x != 0 ? near : __builtin_nextafterf(near, 0.0f);
}
static void multiply_add_tf32(float (&sums)[4], const float* left, const float* right) {
    for (unsigned i = 0; i < 4; i++) own().left[i] = tf32(left[i]);
    for (unsigned i = 0; i < 2; i++) own().right[i] = tf32(right[i]);
    const Slot* all = of_all();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane() / 4 + (i >= 2 ? 8 : 0), column = lane() % 4 * 2 + (i & 1);
        double sum = sums[i];
        for (unsigned k = 0; k < 8; k++)
            sum += (double)all[row % 8 * 4 + k % 4].left[row / 8 + k / 4 * 2] * all[column * 4 + k % 4].right[k / 4];
        sums[i] = cut_off(sum);
    }
}
static float word_at(Place place) {
    own().place = place;
    const Slot* all = of_all();
    unsigned banks = 0;
    for (unsigned n = 0; n < 32; n++) banks |= 1u << all[n].place / 4 % 32;
    if (banks != 0xffffffffu) fibers::fault = "words in the same banks";
    return *(const float*)place;
}
struct Copy { Place to; const void* from; bool inside; unsigned batch; };
static Copy begun[fibers::MOST][1024];
static unsigned first[fibers::MOST], last[fibers::MOST], batches[fibers::MOST];
}
static void load_matrices(unsigned (&words)[4], Place place) { warp::load(words, place, false); }
static void load_turned(unsigned (&words)[4], Place place) { warp::load(words, place, true); }
static void multiply_add_f16(float (&sums)[4], const unsigned (&left)[4], unsigned low, unsigned high) {
    warp::multiply_add(sums, left, low, high, warp::low_f16);
}
static void multiply_add_bf16(float (&sums)[4], const unsigned (&left)[4], unsigned low, unsigned high) {
    warp::multiply_add(sums, left, low, high, warp::low_bf16);
}
static void load_words(float* words, Place place) {
    unsigned bits[4];
    warp::load(bits, place, false);
    for (unsigned i = 0; i < 4; i++) words[i] = bits_as<float>(bits[i]);
}
template <int AWAY> static float word_at(Place place) { return warp::word_at(place + AWAY); }
static void multiply_add_tf32(float (&sums)[4], const float* left, const float* right, bool begins) {
    for (int i = 0; begins && i < 4; i++) sums[i] = 0.0f;
    warp::multiply_add_tf32(sums, left, right);
}
static unsigned words_of_f16(float low, float high) { return warp::bits_f16(low) | warp::bits_f16(high) << 16; }
static unsigned words_of_bf16(float low, float high) { return warp::bits_bf16(low) | warp::bits_bf16(high) << 16; }
static bool any_of_team(bool truth) {
    warp::own().truth = truth;
    const warp::Slot* all = warp::of_all();
    bool found = false;
    for (int i = 0; i < 32; i++) found |= all[i].truth;
    return found;
}
static float from_partner(float x, int distance) {
    warp::own().number = x;
    return warp::of_all()[warp::lane() ^ distance].number;
}
static float exp2_of(float x) { return exp2f(x); }
static void copy_packet(Place place, const void* global, bool inside) {
    if ((place | (unsigned long)global) % 16) fibers::fault = "a packet is not aligned";
    const unsigned item = fibers::item;
    warp::begun[item][warp::last[item]++ % 1024] = {place, global, inside, warp::batches[item]};
}
static void end_copies() { warp::batches[fibers::item]++; }
template <int N> static void await_copies() {
    const unsigned item = fibers::item;
    for (; warp::first[item] != warp::last[item]; warp::first[item]++) {
        const warp::Copy& copy = warp::begun[item][warp::first[item] % 1024];
        if (copy.batch + N >= warp::batches[item]) return;
        if (copy.inside) __builtin_memcpy((void*)copy.to, copy.from, 16);
        else __builtin_memset((void*)copy.to, 0, 16);
    }
}
"""
"""For a program that has the fibers and the halves of `cuda_code`."""
