// Owns one libuv handle. libuv wants a handle to live until its close callback, so it is on the
// heap and outlives its owner by one turn of the loop; `data` is null from then on, which callbacks
// check. Thread: loop.
#pragma once

#include <uv.h>

#include <utility>

namespace glmd {

template <typename T>
class UvHandle {
 public:
  UvHandle() = default;
  explicit UvHandle(void* owner) : handle_(new T{}) { handle_->data = owner; }
  UvHandle(UvHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  UvHandle& operator=(UvHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~UvHandle() { reset(); }

  // Only after uv_*_init succeeded on it, or never initialised at all.
  void reset() {
    T* handle = std::exchange(handle_, nullptr);
    if (!handle) return;
    handle->data = nullptr;
    auto* base = reinterpret_cast<uv_handle_t*>(handle);
    if (base->loop == nullptr) {
      delete handle;
    } else {
      uv_close(base, [](uv_handle_t* closed) { delete reinterpret_cast<T*>(closed); });
    }
  }

  T* get() const { return handle_; }
  uv_stream_t* stream() const { return reinterpret_cast<uv_stream_t*>(handle_); }
  uv_handle_t* base() const { return reinterpret_cast<uv_handle_t*>(handle_); }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  T* handle_ = nullptr;
};

}  // namespace glmd
