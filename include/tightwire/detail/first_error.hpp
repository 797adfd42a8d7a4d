#pragma once
#include <exception>

namespace tightwire::detail {

/// Lets what must be done be done although some of it throws; the first of these is thrown at the end.
class FirstError {
 public:
  template <class Work>
  void catching(const Work& work) noexcept {
    try {
      work();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace tightwire::detail
