#include "storage/thread_reader.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "platform/time_slice.h"

namespace glmd {

Result<std::unique_ptr<ThreadReader>> ThreadReader::open(const std::vector<std::string>& paths,
                                                         int thread_count,
                                                         const ReadQueueOptions& options) {
  std::vector<File> files;
  for (const std::string& path : paths) files.push_back(TRY(File::open_direct(path)));
  return std::make_unique<ThreadReader>(std::move(files), thread_count, options);
}

ThreadReader::ThreadReader(std::vector<File> files, int thread_count,
                           const ReadQueueOptions& options)
    : queue_(std::move(files), options) {
  CHECK(thread_count >= 1);
  for (int i = 0; i < thread_count; ++i) threads_.threads.emplace_back([this] { serve(); });
}

ThreadReader::Threads::~Threads() {
  queue.close();
  for (std::thread& thread : threads) thread.join();
}

void ThreadReader::serve() {
  ask_for_short_time_slice();
  while (std::optional<ReadSegment> segment = queue_.take()) {
    const int descriptor = queue_.files()[static_cast<size_t>(segment->file)].descriptor();
    ssize_t result = 0;
    do {
      result = ::pread(descriptor, segment->target, static_cast<size_t>(segment->bytes),
                       segment->offset);
      if (result < 0) result = -errno;
    } while (queue_.advance(*segment, result));
    queue_.hand_over();
  }
}

}  // namespace glmd
