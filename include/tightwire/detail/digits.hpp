#pragma once
#include <cstddef>

#include <tightwire/detail/bits.hpp>
#include <tightwire/detail/hd.hpp>

namespace tightwire::detail {

// Codes that take fewer values than a power of two, as the digits of numbers: five codes of 3 values to a byte (3^5 =
// 243), three of 6 to a byte (216), five of 9 to two bytes (59049). Of every run of a block, number i of 16 has the
// codes i, i + 16, ..., so that vectors of bytes are packed without moving any; first the low bytes of the 16, then the
// high ones. The last run of a block may be shorter, its bytes are there all the same.

inline constexpr std::size_t kDigitRow = 16;

/// What codes of `base` values are packed in.
struct DigitForm {
  std::size_t digits;  ///< of a number
  std::size_t bytes;
  constexpr std::size_t run() const { return digits * kDigitRow; }  ///< codes
  constexpr std::size_t run_bytes() const { return bytes * kDigitRow; }
};
TIGHTWIRE_HD constexpr DigitForm digit_form(int base) {
  return base == 6 ? DigitForm{3, 1} : base == 9 ? DigitForm{5, 2} : DigitForm{5, 1};
}

/// Of a block, or what there is of it.
TIGHTWIRE_HD constexpr std::size_t digit_bytes(int base, std::size_t count) {
  const DigitForm form = digit_form(base);
  return (count + form.digits * kDigitRow - 1) / (form.digits * kDigitRow) * (form.bytes * kDigitRow);
}

template <int Base>
struct Digits {
  static_assert(Base == 3 || Base == 6 || Base == 9);
  static constexpr std::size_t per_number = digit_form(Base).digits;
  static constexpr std::size_t run = per_number * kDigitRow;  ///< codes
  static constexpr std::size_t number_bytes = digit_form(Base).bytes;
  static constexpr std::size_t run_bytes = number_bytes * kDigitRow;
  static constexpr int least = -(Base / 2);  ///< code

  /// The code, or for those below 0 the base more; and back.
  TIGHTWIRE_HD static constexpr auto digit(const auto& code) { return code + (code >> 31 & Base); }
  TIGHTWIRE_HD static constexpr auto code(const auto& digit) { return digit - (((Base - 1) / 2 - digit) >> 31 & Base); }
  /// A number without its first digit.
  TIGHTWIRE_HD static constexpr auto rest(const auto& number) {
    return as_int(as_unsigned(number) * kMultiplier >> kShift);
  }
  TIGHTWIRE_HD static constexpr auto first(const auto& number) { return number - rest(number) * Base; }

 private:
  // Of one byte, or two, the quotient is exact.
  static constexpr std::uint32_t kMultiplier = Base == 9 ? 58255 : 171;
  static constexpr int kShift = Base == 9 ? 19 : Base == 6 ? 10 : 9;
};

}  // namespace tightwire::detail
