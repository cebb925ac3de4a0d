#include "storage/reader_choice.h"

#include <algorithm>
#include <utility>

#include "storage/io_uring_reader.h"
#include "storage/thread_reader.h"

namespace glmd {

std::optional<ReaderKind> reader_kind_from(std::string_view name) {
  if (name == "auto") return ReaderKind::automatic;
  if (name == "io_uring") return ReaderKind::io_uring;
  if (name == "threads") return ReaderKind::threads;
  return std::nullopt;
}

namespace {

Result<std::vector<File>> open_all(const std::vector<std::string>& paths) {
  std::vector<File> files;
  for (const std::string& path : paths) files.push_back(TRY(File::open_direct(path)));
  return files;
}

}  // namespace

Result<OpenedReader> open_block_reader(const std::vector<std::string>& paths,
                                       const ReaderSettings& settings) {
  std::vector<File> files = TRY(open_all(paths));
  const auto buffered =
      std::find_if(files.begin(), files.end(), [](const File& file) { return !file.is_direct(); });

  OpenedReader opened;
  opened.is_direct = buffered == files.end();
  std::string why = opened.is_direct
                        ? "direct"
                        : fmt::format("buffered: {} has no direct reads", buffered->path());
  const bool is_automatic = settings.kind == ReaderKind::automatic;
  if (settings.kind == ReaderKind::io_uring || (is_automatic && opened.is_direct)) {
    auto ring = IoUringReader::start(std::move(files), settings.in_flight_max, settings.queue);
    if (ring.ok()) {
      opened.reader = std::move(ring).value();
      opened.description = "io_uring, " + why;
      return opened;
    }
    if (!is_automatic) return std::move(ring).error();
    why += "; " + ring.error().message;
    files = TRY(open_all(paths));
  }
  opened.reader =
      std::make_unique<ThreadReader>(std::move(files), settings.in_flight_max, settings.queue);
  opened.description = fmt::format("{} threads, {}", settings.in_flight_max, why);
  return opened;
}

}  // namespace glmd
