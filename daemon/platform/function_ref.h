// Looks at something to call, for the length of a call: unlike std::function it neither copies nor
// owns, so that it takes no memory.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "platform/check.h"

namespace glmd {

template <typename Signature>
class FunctionRef;

template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  FunctionRef() = default;
  // `callable` must outlive this: a lambda written as an argument does so for that call only.
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& callable)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> R {
          using Callable = std::remove_reference_t<F>;  // const where the object is
          return (*static_cast<Callable*>(object))(std::forward<Args>(args)...);
        }) {}

  explicit operator bool() const { return call_ != nullptr; }
  R operator()(Args... args) const {
    DCHECK(call_ != nullptr);
    return call_(object_, std::forward<Args>(args)...);
  }

 private:
  void* object_ = nullptr;
  R (*call_)(void* object, Args... args) = nullptr;
};

}  // namespace glmd
