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

Result<OpenedReader> open_block_reader(const std::vector<std::string>& paths,
                                       const ReaderSettings& settings) {
  std::vector<File> files;
  for (const std::string& path : paths) files.push_back(TRY(File::open_direct(path)));
  const auto buffered =
      std::find_if(files.begin(), files.end(), [](const File& file) { return !file.is_direct(); });

  OpenedReader opened;
  opened.is_direct = buffered == files.end();
  std::string why = opened.is_direct
                        ? "direct"
                        : fmt::format("buffered: {} has no direct reads", buffered->path());
  bool wants_ring = settings.kind != ReaderKind::threads;
  if (settings.kind == ReaderKind::automatic) {
    const Result<void> allowed = IoUringReader::probe();
    if (!allowed.ok()) why += "; " + allowed.error().message;
    wants_ring = opened.is_direct && allowed.ok();
  }
  if (wants_ring) {
    opened.reader =
        TRY(IoUringReader::start(std::move(files), settings.in_flight_max, settings.queue));
    opened.description = "io_uring, " + why;
  } else {
    opened.reader =
        std::make_unique<ThreadReader>(std::move(files), settings.in_flight_max, settings.queue);
    opened.description = fmt::format("{} threads, {}", settings.in_flight_max, why);
  }
  return opened;
}

}  // namespace glmd
