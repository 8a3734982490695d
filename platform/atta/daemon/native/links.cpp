// Bindings of the links between daemons. Typed and documented in atta.daemon.links.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <tuple>

#include "arrays.hpp"
#include "asking.hpp"

using namespace atta;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Shifts = nb::ndarray<const std::int16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Rows of one edge or node type, grouped by owner: those of owners[i] are rows [starts[i], starts[i + 1]) of `ids`.
struct ByOwner {
  Longs ids, owners, starts, firsts;  // `firsts`: the first id of each owner's range

  void check() const {
    const std::size_t k = owners.size();
    if (starts.size() != k + 1 || firsts.size() != k) bad("starts", "must fit the owners");
    if (k > 0 && (starts.data()[0] < 0 || !std::is_sorted(starts.data(), starts.data() + k + 1) ||
                  static_cast<std::size_t>(starts.data()[k]) > ids.size()))
      bad("starts", "must ascend within the ids");
    for (std::size_t i = 0; i < k; ++i)
      if (firsts.data()[i] < 0) bad("firsts", "must not be negative");
  }
};

struct SampleQuestion {
  std::uint16_t edge_type;
  std::int32_t fan_out;
  bool replace;
  std::uint64_t key;
  std::uint32_t renewed, method;
  const std::int32_t* trees;
  const std::int64_t* times;
};

struct PullQuestion {
  std::uint16_t node_type;
  std::uint64_t tables;
};

struct SumQuestion {
  Shifts shifts;
  std::uint32_t width;
  const float* weights;
  std::vector<std::size_t> starts{0};  // of the rows of each sum
  std::vector<std::int64_t> places;    // of sums in the output: one after another
};

struct Item {
  Item(ByOwner of, bool is_pull) : rows(std::move(of)), pulls(is_pull) {}

  ByOwner rows;
  bool pulls;
  SampleQuestion sample{};
  PullQuestion pull{};
  std::optional<SumQuestion> sums;
  std::vector<TargetTable> outs;
};

// Writes the frame of one request.
void write_request(const Item& item, const Asked& asked, std::int64_t base, std::uint64_t number, std::uint32_t age_ms,
                   Piece& out) {
  const SumQuestion* const sums = item.sums ? &*item.sums : nullptr;
  const std::size_t first = sums ? sums->starts[asked.first] : asked.first;
  const std::size_t n = sums ? sums->starts[asked.first + asked.rows] - first : asked.rows;
  const std::int64_t* ids = item.rows.ids.data() + first;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, ids[i] - base);
  const bool wide = most > INT32_MAX;
  FrameHeader head;
  head.kind = item.pulls ? FrameKind::kPull : FrameKind::kSample;
  head.item = item.pulls ? item.pull.node_type : item.sample.edge_type;
  head.request = number, head.rows = static_cast<std::uint32_t>(asked.rows), head.age_ms = age_ms;
  head.key = item.pulls ? item.pull.tables : item.sample.key;
  head.flags = wide ? kWideRows : 0;
  out.begin();
  if (sums) {
    head.edges = n, head.first_row = static_cast<std::uint32_t>(sums->shifts.size()), head.method = sums->width;
    head.flags |= static_cast<std::uint8_t>(kSums | (sums->weights != nullptr ? kWeights : 0));
    std::byte* to = out.more(4 * asked.rows);
    for (std::size_t g = asked.first; g < asked.first + asked.rows; ++g, to += 4) {
      const auto count = static_cast<std::uint32_t>(sums->starts[g + 1] - sums->starts[g]);
      std::memcpy(to, &count, sizeof count);
    }
  }
  if (!item.pulls) {
    head.first_row = item.sample.renewed, head.fan_out = item.sample.fan_out, head.method = item.sample.method;
    head.flags |= static_cast<std::uint8_t>((item.sample.replace ? kReplace : 0) | (item.sample.trees != nullptr ? kTrees : 0) |
                                            (item.sample.times != nullptr ? kTimes : 0));
    if (item.sample.times != nullptr) std::memcpy(out.more(8 * n), item.sample.times + asked.first, 8 * n);
  }
  std::byte* rows = out.more((wide ? 8 : 4) * n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t row = ids[i] - base;
    if (wide)
      std::memcpy(rows + 8 * i, &row, 8);
    else {
      const auto narrow = static_cast<std::int32_t>(row);
      std::memcpy(rows + 4 * i, &narrow, 4);
    }
  }
  if (sums && sums->weights != nullptr) std::memcpy(out.more(4 * n), sums->weights + first, 4 * n);
  if (sums) std::memcpy(out.more(2 * sums->shifts.size()), sums->shifts.data(), 2 * sums->shifts.size());
  if (!item.pulls && item.sample.trees != nullptr) std::memcpy(out.more(4 * n), item.sample.trees + asked.first, 4 * n);
  out.end(head);
}

// A step of a batch: what it asks, until all is answered, refused or lost. It holds the arrays that the links use, so
// it gives up what is under way before it goes.
class Step {
 public:
  Step(std::uint64_t number, std::shared_ptr<Finished> finished)
      : requests_(std::make_shared<StepRequests>(number, std::move(finished))) {}
  Step(const Step&) = delete;
  ~Step() { give_up("nobody waits for it"); }

  std::uint64_t number() const { return requests_->number(); }
  bool done() const { return begun_ && requests_->done(); }

  std::size_t sample(std::size_t edge_type, Longs ids, Longs owners, Longs starts, Longs firsts, std::int64_t fan_out, bool replace,
                     std::uint64_t key, std::uint32_t renewed, std::uint32_t method, std::optional<Ints> trees,
                     std::optional<Longs> times, std::uint64_t most_edges) {
    if (edge_type > UINT16_MAX) bad("edge_type", "is too large");
    if (fan_out < -1 || fan_out > kMaxFanOut) bad("fan_out", "must be -1 or 0 to 2**20");
    if (most_edges >= std::uint64_t{1} << 40) bad("most_edges", "must be below 2**40");
    if (trees && trees->size() != ids.size()) bad("trees", "must be as long as ids");
    if (times && times->size() != ids.size()) bad("times", "must be as long as ids");
    Item item({ids, owners, starts, firsts}, false);
    item.sample = {static_cast<std::uint16_t>(edge_type), static_cast<std::int32_t>(fan_out), replace, key, renewed, method,
                   trees ? trees->data() : nullptr,       times ? times->data() : nullptr};
    if (trees) kept_ints_.push_back(*trees);
    if (times) kept_longs_.push_back(*times);
    return add(std::move(item), [&](Asked& asked) { asked.most_edges = most_edges; });
  }

  std::size_t pull(std::size_t node_type, std::uint64_t tables, Longs ids, Longs positions, Longs owners, Longs starts,
                   Longs firsts, nb::list outs) {
    if (node_type > UINT16_MAX) bad("node_type", "is too large");
    if (positions.size() != ids.size()) bad("positions", "must be as long as ids");
    if (static_cast<std::size_t>(std::popcount(tables)) != outs.size() || tables == 0)
      bad("tables", "must have one bit per output");
    Item item({ids, owners, starts, firsts}, true);
    item.pull = {static_cast<std::uint16_t>(node_type), tables};
    std::size_t row_bytes = 0;
    for (nb::handle handle : outs) {
      auto out = nb::cast<OutTable>(handle);
      if (out.ndim() < 1) bad("outs", "must have at least one dimension");
      check_rows("positions", positions.data(), positions.size(), out.shape(0));
      item.outs.push_back({static_cast<std::byte*>(out.data()), row_bytes_of(out)});
      row_bytes += item.outs.back().row_bytes;
      kept_outs_.push_back(std::move(out));
    }
    kept_longs_.push_back(positions);
    return add(std::move(item),
               [&](Asked& asked) { asked.positions = positions.data() + asked.first, asked.row_bytes = row_bytes; });
  }

  // Sums of `counts` rows each, one after another; `starts` are those of the owners' sums. They go to the rows of `out`.
  std::size_t sum(std::size_t node_type, std::uint64_t table, Longs ids, Ints counts, std::optional<Floats> weights, Longs owners,
                  Longs starts, Longs firsts, Shifts shifts, std::uint32_t width, OutTable out) {
    if (node_type > UINT16_MAX) bad("node_type", "is too large");
    if (std::popcount(table) != 1) bad("table", "must have one bit");
    if (weights && weights->size() != ids.size()) bad("weights", "must be as long as ids");
    if (out.ndim() < 1 || out.shape(0) != counts.size()) bad("out", "must have a row per sum");
    if (row_bytes_of(out) != width * shifts.size() || shifts.size() > kMaxColumns) bad("shifts", "must be one for each column");
    Item item({ids, owners, starts, firsts}, true);
    item.pull = {static_cast<std::uint16_t>(node_type), table};
    item.sums = SumQuestion{shifts, width, weights ? weights->data() : nullptr, {0}, {}};
    for (std::size_t g = 0; g < counts.size(); ++g) {
      if (counts.data()[g] < 1) bad("counts", "must be positive");
      item.sums->starts.push_back(item.sums->starts.back() + static_cast<std::size_t>(counts.data()[g]));
      item.sums->places.push_back(static_cast<std::int64_t>(g));
    }
    if (item.sums->starts.back() != ids.size()) bad("counts", "must add up to the ids");
    if (owners.size() > 0 && static_cast<std::size_t>(starts.data()[owners.size()]) > counts.size())
      bad("starts", "must ascend within the sums");
    item.outs.push_back({static_cast<std::byte*>(out.data()), row_bytes_of(out)});
    kept_outs_.push_back(std::move(out)), kept_ints_.push_back(counts);
    if (weights) kept_floats_.push_back(*weights);
    return add(std::move(item), [](Asked&) {});
  }

  // Ends the requests that still wait. When it returns, nobody writes into the step's arrays any more.
  void give_up(const std::string& why) {
    for (std::size_t i = 0; i < requests_->links.size(); ++i)
      if (requests_->links[i] != nullptr) requests_->links[i]->forget(requests_->numbers[i], why.c_str());
  }

  // (item, owner, first row, rows, whether it was refused, why) of what has no answer.
  nb::list left() const {
    check_done();
    nb::list found;
    for (const auto& asked : requests_->asked)
      if (asked->state != Asked::State::kAnswered)
        found.append(nb::make_tuple(asked->item, asked->owner, asked->first + asked->done, asked->rows - asked->done,
                                    asked->state == Asked::State::kRefused, asked->why));
    return found;
  }

  // Bytes of all answers.
  std::uint64_t nbytes() const {
    check_done();
    std::uint64_t total = 0;
    for (const auto& asked : requests_->asked)
      total += asked->pulls() ? asked->row_bytes * asked->done
                              : 4 * asked->counts.size() + asked->neighbors.size() + asked->edge_ids.size();
    return total;
  }

  // (first row, counts, neighbours, edge ids) of what was answered of an item, in order of the rows. Small answers that
  // follow each other are one. The arrays of large ones are the memory into which the links have written: this runs on
  // the event loop.
  nb::list answers(std::size_t index) const {
    check_done();
    std::size_t bytes = 0;
    for (const auto& asked : requests_->asked)
      if (asked->item == index) bytes += 4 * asked->done + asked->neighbors.size() + asked->edge_ids.size();
    nb::list found;
    std::vector<Asked*> run;
    const auto flush = [&] {
      if (!run.empty()) found.append(run.size() == 1 ? shared(*run[0]) : joined(run));
      run.clear();
    };
    for (const auto& asked : requests_->asked) {
      if (asked->item != index || asked->done == 0) continue;
      const bool follows = bytes <= kJoinedBytes && !run.empty() && run.back()->done == run.back()->rows &&
                           run.back()->first + run.back()->rows == asked->first &&
                           run.back()->wide_neighbors == asked->wide_neighbors && run.back()->wide_edge_ids == asked->wide_edge_ids;
      if (!follows) flush();
      run.push_back(asked.get());
    }
    flush();
    return found;
  }

  std::shared_ptr<StepRequests> requests_;
  std::vector<std::unique_ptr<Item>> items;
  bool begun_ = false;

 private:
  template <class Fill>
  std::size_t add(Item item, Fill fill) {
    if (begun_) bad("step", "has begun");
    item.rows.check();
    items.push_back(std::make_unique<Item>(std::move(item)));
    const Item& kept = *items.back();
    const ByOwner& rows = kept.rows;
    for (std::size_t k = 0; k < rows.owners.size(); ++k) {
      const auto stop = static_cast<std::size_t>(rows.starts.data()[k + 1]);
      for (auto at = static_cast<std::size_t>(rows.starts.data()[k]); at < stop; at += requests_->asked.back()->rows) {
        auto asked = std::make_unique<Asked>();
        asked->item = items.size() - 1, asked->owner = rows.owners.data()[k];
        asked->first = at, asked->rows = std::min(kMaxRequestRows, stop - at);
        std::size_t first = at, end = at + asked->rows;  // of the ids
        if (kept.sums) {
          const std::vector<std::size_t>& of = kept.sums->starts;
          while (asked->rows > 1 && of[at + asked->rows] - of[at] > kMaxAddends) asked->rows = (asked->rows + 1) / 2;
          first = of[at], end = of[at + asked->rows];
          asked->positions = kept.sums->places.data() + at, asked->row_bytes = kept.outs[0].row_bytes;
        }
        for (std::size_t i = first; i < end; ++i)
          if (rows.ids.data()[i] < rows.firsts.data()[k]) bad("ids", "an id is below its owner's first");
        fill(*asked);
        if (kept.pulls) asked->tables = &kept.outs;
        requests_->asked.push_back(std::move(asked));
        firsts_.push_back(rows.firsts.data()[k]);
      }
    }
    return items.size() - 1;
  }

  void check_done() const {
    if (!done()) bad("step", "is under way");
  }

  // Most bytes of an item whose answers are copied into one. To hand out arrays costs about as much as to copy as many.
  static constexpr std::size_t kJoinedBytes = std::size_t{256} << 10;

  nb::tuple shared(Asked& asked) const {
    nb::capsule owner(new std::shared_ptr<StepRequests>(requests_),
                      [](void* kept) noexcept { delete static_cast<std::shared_ptr<StepRequests>*>(kept); });
    return nb::make_tuple(asked.first, view(asked.counts.data(), asked.done, owner),
                          ids_of(asked.neighbors, asked.edges, asked.wide_neighbors, owner),
                          ids_of(asked.edge_ids, asked.edges, asked.wide_edge_ids, owner));
  }

  template <class T>
  static nb::object view(T* data, std::size_t size, const nb::capsule& owner) {
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
  }

  static nb::object ids_of(std::vector<std::byte>& bytes, std::size_t size, bool wide, const nb::capsule& owner) {
    return wide ? view(reinterpret_cast<std::int64_t*>(bytes.data()), size, owner)
                : view(reinterpret_cast<std::int32_t*>(bytes.data()), size, owner);
  }

  template <class T>
  static nb::object array_of(const std::vector<Asked*>& run, std::vector<std::byte> Asked::* part) {
    std::size_t edges = 0, at = 0;
    for (const Asked* asked : run) edges += asked->edges;
    Buffer<T> out(edges);
    for (const Asked* asked : run) {
      if (asked->edges > 0) std::memcpy(out.data + at, (asked->*part).data(), asked->edges * sizeof(T));
      at += asked->edges;
    }
    return out.release();
  }

  static nb::tuple joined(const std::vector<Asked*>& run) {
    std::size_t rows = 0, at = 0;
    for (const Asked* asked : run) rows += asked->done;
    Buffer<std::int32_t> counts(rows);
    for (const Asked* asked : run) std::copy_n(asked->counts.begin(), asked->done, counts.data + at), at += asked->done;
    nb::object neighbors =
        run[0]->wide_neighbors ? array_of<std::int64_t>(run, &Asked::neighbors) : array_of<std::int32_t>(run, &Asked::neighbors);
    nb::object edge_ids =
        run[0]->wide_edge_ids ? array_of<std::int64_t>(run, &Asked::edge_ids) : array_of<std::int32_t>(run, &Asked::edge_ids);
    return nb::make_tuple(run[0]->first, counts.release(), neighbors, edge_ids);
  }

 public:
  std::vector<std::int64_t> firsts_;  // of the owner of each request

 private:
  std::vector<Ints> kept_ints_;
  std::vector<Longs> kept_longs_;
  std::vector<OutTable> kept_outs_;
  std::vector<Floats> kept_floats_;
};

// The encryption of one connection, until a link takes it over.
struct Handshake {
  std::unique_ptr<LinkTls> tls;
};

std::unique_ptr<LinkTls> taken(Handshake* handshake) {
  if (handshake == nullptr) return nullptr;
  if (handshake->tls == nullptr) bad("tls", "is used by a link");
  return std::move(handshake->tls);
}

// All links of a daemon: the data that it serves, and the peers that it asks.
class Links {
 public:
  explicit Links(std::size_t threads)
      : counters_(std::make_shared<LinkCounters>()),
        finished_(std::make_shared<Finished>()),
        data_(std::make_shared<ServedData>()) {
    if (threads < 1 || threads > 64) bad("threads", "must be 1 to 64");
    for (std::size_t i = 0; i < threads; ++i) loops_.push_back(std::make_unique<Loop>("atta-link-" + std::to_string(i)));
  }
  Links(const Links&) = delete;
  ~Links() { close(); }

  int fd() const { return finished_->fd(); }

  std::size_t add_edges(Longs indptr, Spread indices, Spread edge_ids, Longs keys) {
    if (serving_) bad("edges", "must be added before the first link");
    if (indptr.size() == 0 || keys.size() + 1 != indptr.size()) bad("keys", "must have one key per row");
    const std::int64_t stride = stride_of(indices, &edge_ids);
    for (const auto& ids : {indices, edge_ids})
      if (!is_int32(ids.dtype()) && !is_int64(ids.dtype())) bad("ids", "must be int32 or int64");
    data_->edges.emplace_back();
    ServedEdges& edges = data_->edges.back();
    edges.indptr = {indptr.data(), indptr.size()};
    edges.indices = indices.data(), edges.edge_ids = edge_ids.data(), edges.edges = indices.size(), edges.keys = keys.data(),
    edges.stride = stride;
    edges.wide_indices = is_int64(indices.dtype()), edges.wide_edge_ids = is_int64(edge_ids.dtype());
    kept_longs_.push_back(indptr), kept_longs_.push_back(keys), kept_.push_back(indices), kept_.push_back(edge_ids);
    return data_->edges.size() - 1;
  }

  // A method that is prepared for an edge type; None: uniform sampling, or a method that draws uniformly there.
  void prepare(std::size_t edge_type, std::size_t number, std::optional<nb::object> method) {
    if (edge_type >= data_->edges.size() || number >= kMethods) bad("method", "no such edge type or method");
    const Method* native = method && !method->is_none() ? nb::cast<const Method*>(*method) : nullptr;
    if (native != nullptr && native->edges() != data_->edges[edge_type].edges)
      bad("method", "its tables were made for other edges");
    if (data_->edges[edge_type].prepared[number].load()) return;
    if (native != nullptr) methods_.push_back(*method);
    data_->edges[edge_type].methods[number].store(native, std::memory_order_release);
    data_->edges[edge_type].prepared[number].store(true, std::memory_order_release);
  }

  // Sources and edge ids of these edges lie on the disk, and begin there at a byte.
  void edges_on_disk(std::size_t edge_type, nb::object indices, std::uint64_t indices_at, nb::object edge_ids,
                     std::uint64_t edge_ids_at) {
    if (serving_ || edge_type >= data_->edges.size()) bad("edges", "must be added before the first link");
    ServedEdges& edges = data_->edges[edge_type];
    edges.disk_indices = nb::cast<DiskRows*>(indices), edges.disk_edge_ids = nb::cast<DiskRows*>(edge_ids);
    edges.indices_at = indices_at, edges.edge_ids_at = edge_ids_at;
    methods_.push_back(std::move(indices)), methods_.push_back(std::move(edge_ids));
  }

  // `disk`: reads the rows, or None.
  void add_table(std::size_t node_type, Table rows, nb::object disk) {
    if (serving_) bad("table", "must be added before the first link");
    if (rows.ndim() < 1) bad("table", "must have at least one dimension");
    if (node_type > UINT16_MAX) bad("node_type", "is too large");
    if (data_->tables.size() <= node_type) data_->tables.resize(node_type + 1);
    if (data_->tables[node_type].size() == 64) bad("table", "a node type has 64 tables at most");
    DiskRows* const on_disk = disk.is_none() ? nullptr : nb::cast<DiskRows*>(disk);
    if (on_disk != nullptr && (on_disk->rows() != rows.shape(0) || on_disk->row_bytes() != row_bytes_of(rows)))
      bad("disk", "has other rows");
    data_->tables[node_type].push_back({static_cast<const std::byte*>(rows.data()), rows.shape(0), row_bytes_of(rows), on_disk});
    methods_.push_back(std::move(disk));
    kept_tables_.push_back(std::move(rows));
  }

  // Answers the requests of a peer. It takes the socket over.
  void serve(int fd, std::int64_t peer, Handshake* tls) {
    serving_ = true;
    Loop& loop = next_loop();
    loop.add(std::make_shared<ServingEnd>(fd, loop, data_, counters_, peer, taken(tls)));
  }

  void keep_served(std::size_t most) { counters_->log.keep(most); }

  // (when it ended, when it came, peer, whether rows were pulled, bytes of the answer) of the last requests that were
  // answered, the oldest first. Times are seconds of the monotonic clock.
  nb::list served() const {
    nb::list found;
    for (const ServedRequest& one : counters_->log.entries())
      found.append(nb::make_tuple(1e-6 * static_cast<double>(one.ended_us), 1e-6 * static_cast<double>(one.came_us), one.peer,
                                  one.pulls, one.bytes));
    return found;
  }

  // Asks `owner` over this socket from now on. It takes the socket over.
  void attach(std::int64_t owner, int fd, Handshake* tls) {
    Loop& loop = next_loop();
    auto end = std::make_shared<AskingEnd>(fd, owner, loop, counters_, taken(tls));
    links_[owner].push_back(end);
    loop.add(end);
  }

  void detach(std::int64_t owner) {
    for (const auto& end : links_[owner]) end->close();
    links_.erase(owner);
  }

  std::size_t attached(std::int64_t owner) {
    const auto found = links_.find(owner);
    if (found == links_.end()) return 0;
    std::erase_if(found->second, [](const auto& end) { return !end->alive(); });
    return found->second.size();
  }

  // The owners that owe answers, and of which nothing has come for so long.
  std::vector<std::int64_t> silent(double seconds) const {
    const std::int64_t since = now_us() - static_cast<std::int64_t>(1e6 * seconds);
    std::vector<std::int64_t> found;
    for (const auto& [owner, ends] : links_)
      if (std::any_of(ends.begin(), ends.end(), [&](const auto& end) { return end->silent_since(since); })) found.push_back(owner);
    return found;
  }

  Step* step() { return new Step(++steps_, finished_); }  // Python owns it

  // Hands the requests of a step to their links. `flush` sends them.
  void begin(Step& step, std::uint32_t age_ms) {
    if (step.begun_) bad("step", "has begun");
    step.begun_ = true;
    StepRequests& of = *step.requests_;
    const std::size_t count = of.asked.size();
    of.links.resize(count), of.numbers.resize(count);
    of.expect(count + 1);
    for (std::size_t i = 0; i < count; ++i) {
      Asked* asked = of.asked[i].get();
      const Item& item = *step.items[asked->item];
      const std::shared_ptr<AskingEnd> link = pick(asked->owner);
      std::uint64_t number = 0;
      if (link != nullptr)
        number = link->ask(step.requests_, asked,
                           [&](Piece& out, std::uint64_t n) { write_request(item, *asked, step.firsts_[i], n, age_ms, out); });
      if (number == 0) {
        asked->state = Asked::State::kLost, asked->why = "there is no link that takes it";
        of.ended();
        continue;
      }
      of.links[i] = link, of.numbers[i] = number;
      if (std::find(dirty_.begin(), dirty_.end(), link) == dirty_.end()) dirty_.push_back(link);
    }
    of.ended();
  }

  void flush() {
    const auto dirty = std::exchange(dirty_, {});
    nb::gil_scoped_release unlocked;
    for (const auto& link : dirty) link->flush();
  }

  std::vector<std::uint64_t> finished() { return finished_->take(); }

  std::unordered_map<std::string, double> stats() const {
    const auto read = [](const std::atomic<std::uint64_t>& n) { return static_cast<double>(n.load(std::memory_order_relaxed)); };
    std::unordered_map<std::string, double> found{
        {"link_requests_served", read(counters_->served)},   {"link_sent_bytes", read(counters_->served_bytes)},
        {"link_requests_asked", read(counters_->asked)},     {"link_received_bytes", read(counters_->answered_bytes)},
        {"link_requests_refused", read(counters_->refused)}, {"links_broken", read(counters_->broken)},
        {"links_malformed", read(counters_->malformed)}};
    for (const auto& [owner, bytes] : counters_->received) found["peer_received_bytes_" + std::to_string(owner)] = read(bytes);
    return found;
  }

  void close() {
    {
      nb::gil_scoped_release unlocked;
      for (const auto& loop : loops_) loop->stop();
    }
    links_.clear(), dirty_.clear();
  }

 private:
  Loop& next_loop() { return *loops_[turn_++ % loops_.size()]; }

  std::shared_ptr<AskingEnd> pick(std::int64_t owner) {
    const auto found = links_.find(owner);
    if (found == links_.end() || found->second.empty()) return nullptr;
    for (std::size_t i = 0; i < found->second.size(); ++i) {
      const auto& end = found->second[turn_++ % found->second.size()];
      if (end->alive()) return end;
    }
    return nullptr;
  }

  std::shared_ptr<LinkCounters> counters_;
  std::shared_ptr<Finished> finished_;
  std::shared_ptr<ServedData> data_;
  bool serving_ = false;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::map<std::int64_t, std::vector<std::shared_ptr<AskingEnd>>> links_;
  std::vector<std::shared_ptr<AskingEnd>> dirty_;
  std::uint64_t steps_ = 0;
  std::size_t turn_ = 0;
  std::vector<Longs> kept_longs_;
  std::vector<Spread> kept_;
  std::vector<Table> kept_tables_;
  std::vector<nb::object> methods_;
};

}  // namespace

void bind_links(nb::module_& m) {
  nb::class_<Step>(m, "Step")
      .def_prop_ro("number", &Step::number)
      .def_prop_ro("done", &Step::done)
      .def("sample", &Step::sample, "edge_type"_a, "ids"_a, "owners"_a, "starts"_a, "firsts"_a, "fan_out"_a, "replace"_a, "key"_a,
           "renewed"_a, "method"_a, "trees"_a.none(), "times"_a.none(), "most_edges"_a)
      .def("pull", &Step::pull, "node_type"_a, "tables"_a, "ids"_a, "positions"_a, "owners"_a, "starts"_a, "firsts"_a, "outs"_a)
      .def("sum", &Step::sum, "node_type"_a, "table"_a, "ids"_a, "counts"_a, "weights"_a.none(), "owners"_a, "starts"_a, "firsts"_a,
           "shifts"_a, "width"_a, "out"_a)
      .def("give_up", &Step::give_up, "why"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("left", &Step::left)
      .def("nbytes", &Step::nbytes)
      .def("answers", &Step::answers, "item"_a);
  m.attr("link_tls") = kHasLinkTls;
#ifdef ATTA_LINK_TLS
  nb::class_<Handshake>(m, "LinkTls")
      .def(
          "__init__",
          [](Handshake* self, int fd, const nb::bytes& secret, bool serves) {
            if (secret.size() != kLinkSecretBytes) bad("secret", "must have 32 bytes");
            new (self) Handshake{std::make_unique<LinkTls>(fd, std::string(secret.c_str(), secret.size()), serves)};
          },
          "fd"_a, "secret"_a, "serves"_a)
      .def(
          "shake_hands",
          [](Handshake& self, int timeout_ms) {
            if (self.tls == nullptr) bad("tls", "is used by a link");
            const char* why = nullptr;
            {
              nb::gil_scoped_release unlocked;
              why = self.tls->shake_hands(timeout_ms);
            }
            return std::string(why == nullptr ? "" : why);
          },
          "timeout_ms"_a);
#else
  nb::class_<Handshake>(m, "LinkTls");
#endif
  nb::class_<Links>(m, "Links")
      .def(nb::init<std::size_t>(), "threads"_a)
      .def_prop_ro("fd", &Links::fd)
      .def("add_edges", &Links::add_edges, "indptr"_a, "indices"_a, "edge_ids"_a, "keys"_a)
      .def("prepare", &Links::prepare, "edge_type"_a, "number"_a, "method"_a.none())
      .def("edges_on_disk", &Links::edges_on_disk, "edge_type"_a, "indices"_a, "indices_at"_a, "edge_ids"_a, "edge_ids_at"_a)
      .def("add_table", &Links::add_table, "node_type"_a, "rows"_a, "disk"_a.none() = nb::none())
      .def("serve", &Links::serve, "fd"_a, "peer"_a = -1, "tls"_a.none() = nullptr)
      .def("keep_served", &Links::keep_served, "most"_a)
      .def("served", &Links::served)
      .def("attach", &Links::attach, "owner"_a, "fd"_a, "tls"_a.none() = nullptr)
      .def("detach", &Links::detach, "owner"_a)
      .def("attached", &Links::attached, "owner"_a)
      .def("silent", &Links::silent, "seconds"_a)
      .def("step", &Links::step, nb::rv_policy::take_ownership)
      .def("begin", &Links::begin, "step"_a, "age_ms"_a)
      .def("flush", &Links::flush)
      .def("finished", &Links::finished)
      .def("stats", &Links::stats)
      .def("close", &Links::close);
}
