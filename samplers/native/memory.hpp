// Memory for random reads. It is on huge pages if the system gives them. Otherwise each cache miss would be a TLB miss
// too.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

namespace atta {

// Requests a line that will be written.
inline void request_for_write(const void* at) {
#if defined(__x86_64__)
  // GCC makes this instruction of __builtin_prefetch(at, 1) only if it may use 3DNow!. Processors without it ignore it.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
  asm volatile("");  // else GCC takes this for a function without effects and drops it
#endif
}

// Allocates uninitialised memory. std::free frees it.
inline void* allocate_lines(std::size_t bytes) {
  constexpr std::size_t kPage = std::size_t{2} << 20;
  const std::size_t align = bytes < kPage ? 64 : kPage;
  const std::size_t whole = (std::max<std::size_t>(1, bytes) + align - 1) / align * align;
  void* memory = std::aligned_alloc(align, whole);
  if (memory == nullptr) throw std::bad_alloc();
  if (align == kPage) madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

// An allocator for containers.
template <class T>
struct LinesAllocator {
  using value_type = T;
  LinesAllocator() = default;
  template <class U>
  LinesAllocator(const LinesAllocator<U>& /*other*/) {}
  T* allocate(std::size_t n) { return static_cast<T*>(allocate_lines(n * sizeof(T))); }
  void deallocate(T* p, std::size_t /*n*/) { std::free(p); }
  bool operator==(const LinesAllocator& /*other*/) const { return true; }
};

// A fixed number of uninitialised values.
template <class T>
class Lines {
 public:
  Lines() = default;
  explicit Lines(std::size_t size) : size_(size), data_(static_cast<T*>(allocate_lines(size * sizeof(T)))) {}
  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t nbytes() const { return size_ * sizeof(T); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::size_t size_ = 0;
  std::unique_ptr<T[], Free> data_;
};

}  // namespace atta
