#include "compute/feed_forward.h"

#include <algorithm>
#include <cstring>

#include "compute/output_blocks.h"
#include "platform/grown.h"

namespace glmd {
namespace {

constexpr int64_t gather_grain = 16;

// Where each member's rows begin in the group, in panels, and the row of the input behind each.
// Returns how many rows there are.
int64_t place_rows(std::span<const FeedForward> group, int64_t input_rows, ExpertScratch& scratch) {
  const auto count_of = [&](const FeedForward& member) {
    return member.rows.empty() ? input_rows : std::ssize(member.rows);
  };
  int64_t rows_of_all = 0;
  for (const FeedForward& member : group) rows_of_all += count_of(member);
  scratch.panels.clear();
  scratch.panels.reserve(static_cast<size_t>(rows_of_all));  // at most: of one row each
  scratch.sources.clear();
  int64_t rows = 0;
  for (const FeedForward& member : group) {
    const int64_t count = count_of(member);
    for (int64_t i = 0; i < panel_count(count); ++i) {
      const Panel panel = panel_at(i, count);
      scratch.panels.push_back({&member, panel.first, rows + panel.first, panel.count});
    }
    scratch.sources.insert(scratch.sources.end(), member.rows.begin(), member.rows.end());
    rows += count;
  }
  return rows;
}

// The rows of the group, packed: the kernels take consecutive rows. Where each member has one row
// they are taken from the input, but there is room: the next step of as many rows may need it.
Activations gather(const Compute& compute, const Activations& input, bool quantised,
                   bool is_one_row_each, ExpertScratch& scratch) {
  const std::vector<int32_t>& sources = scratch.sources;
  const auto count = static_cast<int64_t>(sources.size());
  Activations packed = input;
  packed.row_count = count;
  if (!quantised) {
    float* values = grown(scratch.gathered.values, count * input.columns);
    if (is_one_row_each) return input;
    compute.team.run(count, gather_grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(values + i * input.columns, input.values + sources[i] * input.value_stride,
                    static_cast<size_t>(input.columns) * sizeof(float));
      }
    });
    packed.values = values;
    packed.value_stride = input.columns;
    return packed;
  }
  const int64_t padded = padded_columns(input.columns), groups = padded / group_columns;
  int8_t* codes = grown(scratch.gathered.codes, count * padded);
  float* scales = grown(scratch.gathered.scales, count * groups);
  int32_t* sums = grown(scratch.gathered.sums, count * groups);
  if (is_one_row_each) return input;
  compute.team.run(count, gather_grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t source = sources[i];
      std::memcpy(codes + i * padded, input.codes + source * padded, static_cast<size_t>(padded));
      std::memcpy(scales + i * groups, input.scales + source * groups,
                  static_cast<size_t>(groups) * sizeof(float));
      std::memcpy(sums + i * groups, input.sums + source * groups,
                  static_cast<size_t>(groups) * sizeof(int32_t));
    }
  });
  packed.values = nullptr;
  packed.codes = codes;
  packed.scales = scales;
  packed.sums = sums;
  return packed;
}

}  // namespace

void run_feed_forward(const Compute& compute, std::span<const FeedForward> group,
                      const Activations& input, ExpertScratch& scratch, float* output,
                      int64_t output_stride) {
  const Matrix &gate_up = group[0].gate_up, &down = group[0].down;
  const int64_t width = gate_up.rows;
  const bool takes_all_rows = group[0].rows.empty();
  const bool is_one_row_each =
      !takes_all_rows && std::all_of(group.begin(), group.end(), [](const FeedForward& member) {
        return member.rows.size() == 1;
      });
  const int64_t rows = place_rows(group, input.row_count, scratch);
  const Activations packed = takes_all_rows ? input
                                            : gather(compute, input, is_quantised(gate_up.format),
                                                     is_one_row_each, scratch);
  const std::vector<MemberPanel>& panels = scratch.panels;
  int64_t most = 0;
  for (const MemberPanel& panel : panels) most = std::max(most, panel.count);

  float* hidden = grown(scratch.hidden, rows * width);
  const auto gate_up_kernel = compute.kernels.gate_up[static_cast<int>(gate_up.format)];
  run_blocks(compute.team, std::ssize(panels), most, width,
             [&](int64_t index, int64_t begin, int64_t end, int) {
               const MemberPanel& panel = panels[static_cast<size_t>(index)];
               const int64_t source =
                   is_one_row_each ? scratch.sources[panel.group_row] : panel.group_row;
               gate_up_kernel(panel.member->gate_up, part_of(packed, source, panel.count),
                              hidden + panel.group_row * width, width, begin, end);
             });

  scratch.middle.set(hidden, width, rows, width);
  const Activations& middle = scratch.middle.for_format(compute, down.format);
  const auto down_kernel = compute.kernels.matmul[static_cast<int>(down.format)];
  float* all_results =
      grown_aligned(scratch.results, compute.team.thread_count() * result_floats_max);
  run_blocks(compute.team, std::ssize(panels), most, down.rows,
             [&](int64_t index, int64_t begin, int64_t end, int thread) {
               const MemberPanel& panel = panels[static_cast<size_t>(index)];
               const int64_t count = panel.count;
               const Matrix& w = panel.member->down;
               const Activations own = part_of(middle, panel.group_row, count);
               const int32_t* places = panel.member->outputs.data() + panel.member_row;
               if (takes_all_rows || count == 1) {
                 const int64_t first = takes_all_rows ? panel.group_row : places[0];
                 down_kernel(w, own, output + first * output_stride, output_stride, begin, end);
                 return;
               }
               // Results go to rows that are not consecutive: by way of a few columns at a time.
               const int64_t step =
                   std::max(set_rows, result_floats_max / count / set_rows * set_rows);
               float* results = all_results + thread * result_floats_max;
               for (int64_t from = begin; from < end; from += step) {
                 const int64_t columns = std::min(step, end - from);
                 down_kernel(w, own, results - from, step, from, from + columns);
                 for (int64_t i = 0; i < count; ++i) {
                   std::memcpy(output + places[i] * output_stride + from, results + i * step,
                               static_cast<size_t>(columns) * sizeof(float));
                 }
               }
             });
}

}  // namespace glmd
