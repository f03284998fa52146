// Elementary functions with the same bits in a vector loop, in its scalar tail, on every ISA level
// and on a device.
//
// They use only IEEE additions, multiplications, divisions, square roots and operations on bits, in
// a fixed order: no fused multiply-add (compilers are told not to contract), no table, no branch.
// The coefficients are own minimax fits (Remez exchange at 60 digits); measured errors are in
// tests/unit/kernels/test_math.py. Range reduction follows W. J. Cody and W. Waite, "Software
// Manual for the Elementary Functions", 1980.

#ifndef COCOLL_KERNELS_MATH_H_
#define COCOLL_KERNELS_MATH_H_

#include "port.h"

namespace cocoll {

COCOLL_INLINE float absolute(float x) {
  return bit_cast<float>(bit_cast<uint32_t>(x) & 0x7fffffffu);
}

COCOLL_INLINE double absolute(double x) {
  return bit_cast<double>(bit_cast<uint64_t>(x) & 0x7fffffffffffffffull);
}

COCOLL_INLINE float with_sign_of(float magnitude, float sign) {
  return bit_cast<float>(bit_cast<uint32_t>(magnitude) | (bit_cast<uint32_t>(sign) & 0x80000000u));
}

COCOLL_INLINE double with_sign_of(double magnitude, double sign) {
  return bit_cast<double>(bit_cast<uint64_t>(magnitude) |
                          (bit_cast<uint64_t>(sign) & 0x8000000000000000ull));
}

COCOLL_INLINE float not_a_number(float) { return bit_cast<float>(0x7fc00000u); }
COCOLL_INLINE double not_a_number(double) { return bit_cast<double>(0x7ff8000000000000ull); }
COCOLL_INLINE float infinity(float) { return bit_cast<float>(0x7f800000u); }
COCOLL_INLINE double infinity(double) { return bit_cast<double>(0x7ff0000000000000ull); }

COCOLL_INLINE float square_root(float x) {
#if COCOLL_DEVICE
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

COCOLL_INLINE double square_root(double x) {
#if COCOLL_DEVICE
  return sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}

// Both propagate a NaN of either operand.
template <class T>
COCOLL_INLINE T minimum(T a, T b) {
  return (a < b) | (a != a) ? a : b;
}

template <class T>
COCOLL_INLINE T maximum(T a, T b) {
  return (a > b) | (a != a) ? a : b;
}

namespace detail {

// x = n * ln 2 + r with |r| <= ln 2 / 2; n is a whole number. Adding and taking off 1.5 * 2^p
// rounds to a whole number without an instruction for it.
COCOLL_INLINE float reduce_exponent(float x, float* r) {
  const float magic = 0x1.8p23f;
  const float n = (x * 0x1.715476p+0f + magic) - magic;
  *r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  return n;
}

COCOLL_INLINE double reduce_exponent(double x, double* r) {
  const double magic = 0x1.8p52;
  const double n = (x * 0x1.71547652b82fep+0 + magic) - magic;
  *r = (x - n * 0x1.62e42fefa3p-1) - n * 0x1.3de6af278ece6p-42;
  return n;
}

// 2^n for a whole n in the range of normal exponents.
COCOLL_INLINE float power_of_two(float n) {
  return bit_cast<float>(bit_cast<uint32_t>(n + (0x1.8p23f + 127.0f)) << 23);
}

COCOLL_INLINE double power_of_two(double n) {
  return bit_cast<double>(bit_cast<uint64_t>(n + (0x1.8p52 + 1023.0)) << 52);
}

// exp(r) - 1 for |r| <= ln 2 / 2.
COCOLL_INLINE float expm1_reduced(float r) {
  float q = 0x1.6db664p-10f;
  q = q * r + 0x1.123d12p-7f;
  q = q * r + 0x1.55545cp-5f;
  q = q * r + 0x1.55548cp-3f;
  q = q * r + 0x1p-1f;
  return r + (r * r) * q;
}

COCOLL_INLINE double expm1_reduced(double r) {
  double q = 0x1.af86d3c638594p-26;
  q = q * r + 0x1.28b174c33ac48p-22;
  q = q * r + 0x1.71dddefb68d6bp-19;
  q = q * r + 0x1.a0199559045adp-16;
  q = q * r + 0x1.a01a01bb3ffc3p-13;
  q = q * r + 0x1.6c16c186178eep-10;
  q = q * r + 0x1.111111110d520p-7;
  q = q * r + 0x1.555555554fe41p-5;
  q = q * r + 0x1.5555555555561p-3;
  q = q * r + 0x1.000000000000cp-1;
  return r + (r * r) * q;
}

// exp for lowest <= x <= highest, or NaN: the power of two is applied in two halves, so that
// results beyond the normal range overflow or become subnormal with one rounding.
template <class T>
COCOLL_INLINE T exp_clamped(T x, T magic) {
  T r;
  const T n = reduce_exponent(x, &r);
  const T half = (n * T(0.5) + magic) - magic;
  return (T(1) + expm1_reduced(r)) * power_of_two(half) * power_of_two(n - half);
}

// tanh for |x| <= highest, from exp(2|x|) - 1, whose relative error is small down to zero.
template <class T>
COCOLL_INLINE T tanh_clamped(T x, T highest) {
  const T magnitude = absolute(x);
  T r;
  const T n = reduce_exponent(T(2) * (magnitude > highest ? highest : magnitude), &r);
  const T scale = power_of_two(n);
  const T expm1 = scale * expm1_reduced(r) + (scale - T(1));
  return with_sign_of(expm1 / (expm1 + T(2)), x);
}

// erf(x) / x - 1 at z = x^2 <= 1.
COCOLL_INLINE float erf_near(float z) {
  float p = 0x1.496a12p-14f;
  p = p * z + -0x1.a3f71ep-11f;
  p = p * z + 0x1.5405bep-8f;
  p = p * z + -0x1.b7f910p-6f;
  p = p * z + 0x1.ce2cf8p-4f;
  p = p * z + -0x1.81273ep-2f;
  return p * z + 0x1.06eba8p-3f;
}

COCOLL_INLINE double erf_near(double z) {
  double p = -0x1.abae353b8c9f6p-31;
  p = p * z + 0x1.d71b21cf3dcd1p-27;
  p = p * z + -0x1.5c072df7c0e9ep-23;
  p = p * z + 0x1.b97fd5d5cea58p-20;
  p = p * z + -0x1.f4ca4dbca9a02p-17;
  p = p * z + 0x1.f9a2bab00ed8ep-14;
  p = p * z + -0x1.c02db03e3cd72p-11;
  p = p * z + 0x1.565bccf92eaadp-8;
  p = p * z + -0x1.b82ce311fab6fp-6;
  p = p * z + 0x1.ce2f21a040d21p-4;
  p = p * z + -0x1.812746b0379bdp-2;
  return p * z + 0x1.06eba8214db68p-3;
}

// erfc(a) * exp(a^2) for 1 <= a <= 4, as a polynomial in (a - 2) / (a + 2).
COCOLL_INLINE float erfc_far(float a) {
  const float t = (a - 2.0f) / (a + 2.0f);
  float p = 0x1.d8ae74p-8f;
  p = p * t + 0x1.e8dd82p-9f;
  p = p * t + -0x1.4387c4p-4f;
  p = p * t + 0x1.eeea02p-3f;
  p = p * t + -0x1.b57036p-2f;
  return p * t + 0x1.058672p-2f;
}

// The same for 1 <= a <= 6, in (a - 2.5) / (a + 2.5).
COCOLL_INLINE double erfc_far(double a) {
  const double t = (a - 2.5) / (a + 2.5);
  double p = 0x1.f9341a604d4c5p-18;
  p = p * t + 0x1.1921d282bdfddp-16;
  p = p * t + -0x1.2bda291040cb8p-15;
  p = p * t + -0x1.0f8d7c698ecefp-13;
  p = p * t + 0x1.deb6223deea6fp-13;
  p = p * t + 0x1.cb3b223aea6c1p-11;
  p = p * t + -0x1.5a56fafd7a02fp-9;
  p = p * t + -0x1.05bb2d8d4c6bep-8;
  p = p * t + 0x1.470ba1f92f866p-5;
  p = p * t + -0x1.001154373047dp-3;
  p = p * t + 0x1.01c11a735bb39p-2;
  p = p * t + -0x1.7ca88dec217dfp-2;
  return p * t + 0x1.afbb3f3b7343fp-3;
}

template <class T>
COCOLL_INLINE T erf_clamped(T x, T highest, T magic) {
  const T magnitude = absolute(x);
  const T near = magnitude + magnitude * erf_near(magnitude * magnitude);
  const T a = magnitude > highest ? highest : magnitude;
  const T far = T(1) - exp_clamped(-(a * a), magic) * erfc_far(a);
  return with_sign_of(magnitude < T(1) ? near : far, x);
}

// (2 atanh(s) / s - 2) / s^2 at z = s^2, |s| <= (sqrt 2 - 1) / (sqrt 2 + 1).
COCOLL_INLINE float log_series(float z) {
  float g = 0x1.e34098p-3f;
  g = g * z + 0x1.243700p-2f;
  g = g * z + 0x1.999a82p-2f;
  return g * z + 0x1.555554p-1f;
}

COCOLL_INLINE double log_series(double z) {
  double g = 0x1.2f5602c62320cp-3;
  g = g * z + 0x1.399a198f8ac45p-3;
  g = g * z + 0x1.746686b295a10p-3;
  g = g * z + 0x1.c71c50bfa5e2fp-3;
  g = g * z + 0x1.249249436c80ep-2;
  g = g * z + 0x1.999999997e4e4p-2;
  return g * z + 0x1.5555555555597p-1;
}

// x = 2^k * (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), for x > 0; subnormal numbers are
// scaled up first.
COCOLL_INLINE float split_mantissa(float x, float* f) {
  const bool tiny = x < 0x1p-126f;
  const float scaled = tiny ? x * 0x1p23f : x;
  const uint32_t shifted = bit_cast<uint32_t>(scaled) + (0x3f800000u - 0x3f3504f3u);
  const int32_t exponent = static_cast<int32_t>(shifted >> 23);
  *f = bit_cast<float>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  return static_cast<float>(exponent) - (tiny ? 150.0f : 127.0f);
}

COCOLL_INLINE double split_mantissa(double x, double* f) {
  const bool tiny = x < 0x1p-1022;
  const double scaled = tiny ? x * 0x1p52 : x;
  const uint64_t shifted =
      bit_cast<uint64_t>(scaled) + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
  // The exponent as the low bits of 2^52 + exponent: no conversion from 64-bit integers is needed.
  const double exponent = bit_cast<double>((shifted >> 52) | 0x4330000000000000ull) - 0x1p52;
  *f = bit_cast<double>((shifted & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  return exponent - (tiny ? 1075.0 : 1023.0);
}

COCOLL_INLINE void ln2_parts(float* high, float* low) {
  *high = 0x1.62e4p-1f;
  *low = 0x1.7f7d1cp-20f;
}

COCOLL_INLINE void ln2_parts(double* high, double* low) {
  *high = 0x1.62e42fefa3p-1;
  *low = 0x1.3de6af278ece6p-42;
}

template <class T>
COCOLL_INLINE T log_any(T x) {
  T f;
  const T k = split_mantissa(x, &f);
  T ln2_high, ln2_low;
  ln2_parts(&ln2_high, &ln2_low);
  // log(1 + f) = 2 s + s z G(z) with s = f / (2 + f), and 2 s = f - s f.
  const T s = f / (T(2) + f);
  const T z = s * s;
  const T finite = k * ln2_high + (f - (s * (f - z * log_series(z)) - k * ln2_low));
  T result = x == infinity(x) ? x : finite;
  result = x == T(0) ? -infinity(x) : result;
  return x < T(0) ? not_a_number(x) : (x != x ? x : result);
}

// a * b = product + *error, exactly (T. J. Dekker, "A floating-point technique for extending the
// available precision", Numerische Mathematik 18, 1971).
COCOLL_INLINE double two_product(double a, double b, double* error) {
  const double product = a * b;
  const double a_split = a * 0x1.0000002p27;
  const double a_high = a_split - (a_split - a);
  const double a_low = a - a_high;
  const double b_split = b * 0x1.0000002p27;
  const double b_high = b_split - (b_split - b);
  const double b_low = b - b_high;
  *error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
  return product;
}

// log(x) = high + *low to about 2^-62, for finite x > 0.
COCOLL_INLINE double log_extended(double x, double* low) {
  double f;
  const double k = split_mantissa(x, &f);
  const double d = 2.0 + f;
  const double d_low = f - (d - 2.0);
  const double s = f / d;
  double product_low;
  const double product = two_product(s, d, &product_low);
  const double s_low = (((f - product) - product_low) - s * d_low) / d;
  const double z = s * s;
  const double series = s * z * log_series(z);
  // 2 s is much larger than the series, and k ln 2 than both wherever k is not 0.
  const double first = 2.0 * s;
  const double base = k * 0x1.62e42fefa3p-1;
  const double high = base + first;
  const double first_rest = high - base;
  const double rest = (base - (high - first_rest)) + (first - first_rest);
  const double tail = rest + (2.0 * s_low + (series + k * 0x1.3de6af278ece6p-42));
  const double sum = high + tail;
  *low = (high - sum) + tail;
  return sum;
}

}  // namespace detail

COCOLL_INLINE float exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  return detail::exp_clamped(x, 0x1.8p23f);
}

COCOLL_INLINE double exp(double x) {
  x = x > 710.0 ? 710.0 : x;
  x = x < -746.0 ? -746.0 : x;
  return detail::exp_clamped(x, 0x1.8p52);
}

COCOLL_INLINE float tanh(float x) { return detail::tanh_clamped(x, 10.0f); }
COCOLL_INLINE double tanh(double x) { return detail::tanh_clamped(x, 20.0); }
COCOLL_INLINE float erf(float x) { return detail::erf_clamped(x, 4.0f, 0x1.8p23f); }
COCOLL_INLINE double erf(double x) { return detail::erf_clamped(x, 6.0, 0x1.8p52); }
COCOLL_INLINE float log(float x) { return detail::log_any(x); }
COCOLL_INLINE double log(double x) { return detail::log_any(x); }

// x to the power y as C defines it: a negative x needs a whole y, anything to the power 0 is 1, and
// 1 to any power is 1.
COCOLL_INLINE double power(double x, double y) {
  const double magnitude = absolute(x);
  double low;
  const double high = detail::log_extended(magnitude, &low);
  // Beyond this y every power but that of 1 has over- or underflowed, and products stay finite.
  const double limit = 0x1p64;
  double exponent = y > limit ? limit : y;
  exponent = exponent < -limit ? -limit : exponent;
  double product_low;
  const double product = detail::two_product(exponent, high, &product_low);
  double finite = exp(product);
  const double correction = product_low + exponent * low;
  finite = absolute(product) < 746.0 ? finite + finite * correction : finite;
  // 2^52 and more has no fraction; below it, adding and taking off 2^52 rounds to a whole number.
  const double y_magnitude = absolute(y);
  const double whole = y_magnitude < 0x1p52 ? (y_magnitude + 0x1p52) - 0x1p52 : y_magnitude;
  const bool y_is_whole = whole == y_magnitude;
  const double halves = whole * 0.5;
  const double halves_whole = halves < 0x1p52 ? (halves + 0x1p52) - 0x1p52 : halves;
  const bool y_is_odd = y_is_whole & (halves_whole != halves) & (y_magnitude < 0x1p53);
  const double endless = infinity(x);
  const double at_zero = y < 0.0 ? endless : 0.0;
  const double at_infinity = y < 0.0 ? 0.0 : endless;
  double result = magnitude == 0.0 ? at_zero : finite;
  result = magnitude == endless ? at_infinity : result;
  result = magnitude == 1.0 ? 1.0 : result;
  const double negative = y_is_odd ? -result : result;
  const bool is_negative = (bit_cast<uint64_t>(x) >> 63) != 0u;
  result = is_negative ? negative : result;
  const bool undefined = (x < 0.0) & !y_is_whole & (magnitude != endless);
  result = undefined ? not_a_number(x) : result;
  result = (x != x) | (y != y) ? x + y : result;
  return (y == 0.0) | (x == 1.0) ? 1.0 : result;
}

COCOLL_INLINE float power(float x, float y) {
  return static_cast<float>(power(static_cast<double>(x), static_cast<double>(y)));
}

}  // namespace cocoll

#endif  // COCOLL_KERNELS_MATH_H_
