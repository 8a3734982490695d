// Damages frames between both ends of a link: neither may crash, hang or hold a wrong structure. One thread drives
// both ends, so a seed repeats its run.
//
//     frames FRAMES [SEED]    until so many frames have passed
#include <cinttypes>
#include <deque>

#include "served.hpp"

using namespace atta;
using namespace atta::fuzz;

namespace {

// What happens to the bytes of one direction. From kGarbage on, arrays may be damaged, which ends cannot see.
enum class Damage { kNone, kHeader, kEnd, kGarbage, kByte, kField, kRepeat, kDrop };

constexpr std::array<std::uint64_t, 14> kOdd{
    0, 1, 2, 63, 255, 65'535, 1 << 20, (1 << 20) + 1, INT32_MAX, UINT32_MAX, 1ULL << 40, INT64_MAX, UINT64_MAX - 6, UINT64_MAX};

std::uint64_t passed = 0, damaged = 0, answered = 0, refused = 0, lost = 0, forgotten = 0;

// Carries bytes from one end to the other, frame by frame, and damages one of them.
class Wire {
 public:
  Wire(int from, int to, Damage damage, std::size_t victim, Rng& rng)
      : from_(from), to_(to), damage_(damage), victim_(victim), rng_(rng) {}

  // Returns whether anything moved.
  bool carry() {
    bool moved = false;
    std::byte buffer[1 << 16];
    for (ssize_t got; (got = ::recv(from_, buffer, sizeof buffer, 0)) > 0; moved = true)
      in_.insert(in_.end(), buffer, buffer + got);
    std::size_t at = 0;
    while (in_.size() - at >= sizeof(FrameHeader)) {
      FrameHeader head;
      std::memcpy(&head, in_.data() + at, sizeof head);
      const std::size_t whole = sizeof head + static_cast<std::size_t>(padded(head.bytes));
      if (in_.size() - at < whole) break;
      pass({in_.begin() + static_cast<std::ptrdiff_t>(at), in_.begin() + static_cast<std::ptrdiff_t>(at + whole)});
      at += whole;
    }
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(at));
    while (sent_ < out_.size()) {
      const std::size_t most = 1 + below(rng_, below(rng_, 4) == 0 ? 100 : 100'000);  // cut anywhere
      const ssize_t count = ::send(to_, out_.data() + sent_, std::min(most, out_.size() - sent_), MSG_NOSIGNAL);
      if (count < 0) break;
      sent_ += static_cast<std::size_t>(count), moved = true;
      if (below(rng_, 3) == 0) break;
    }
    if (sent_ == out_.size()) out_.clear(), sent_ = 0;
    if (ended_ && out_.empty()) ::shutdown(to_, SHUT_RDWR);
    return moved;
  }

 private:
  void pass(std::vector<std::byte> frame) {
    ++passed;
    if (ended_) return;
    if (seen_++ == victim_) {
      damaged += damage_ != Damage::kNone;
      hurt(frame);
    }
    out_.insert(out_.end(), frame.begin(), frame.end());
  }

  void hurt(std::vector<std::byte>& frame) {
    switch (damage_) {
      case Damage::kNone:
        return;
      case Damage::kHeader:
        frame[below(rng_, sizeof(FrameHeader))] ^= static_cast<std::byte>(1 << below(rng_, 8));
        return;
      case Damage::kEnd:  // in the middle of a frame, before it, or after it
        frame.resize(below(rng_, frame.size() + 1));
        ended_ = true;
        return;
      case Damage::kGarbage:
        for (std::size_t i = 1 + below(rng_, 200); i > 0; --i)
          frame.insert(frame.begin() + static_cast<std::ptrdiff_t>(below(rng_, frame.size() + 1)), static_cast<std::byte>(rng_()));
        return;
      case Damage::kByte:
        frame[below(rng_, frame.size())] ^= static_cast<std::byte>(1 + below(rng_, 255));
        return;
      case Damage::kField:
        return field(frame);
      case Damage::kRepeat: {
        const std::vector<std::byte> copy = frame;
        frame.insert(frame.end(), copy.begin(), copy.end());
        return;
      }
      case Damage::kDrop:
        frame.clear();
    }
  }

  // A field of a header with a right check: only later checks can find it.
  void field(std::vector<std::byte>& frame) {
    FrameHeader head;
    std::memcpy(&head, frame.data(), sizeof head);
    const std::uint64_t odd = below(rng_, 4) == 0 ? rng_() : kOdd[below(rng_, kOdd.size())];
    switch (below(rng_, 11)) {
      case 0:
        head.kind = static_cast<FrameKind>(odd);
        break;
      case 1:
        head.flags ^= static_cast<std::uint8_t>(1 << below(rng_, 8));
        break;
      case 2:
        head.item = static_cast<std::uint16_t>(odd);
        break;
      case 3:
        head.request = below(rng_, 2) == 0 ? odd : head.request + below(rng_, 5) - 2;
        break;
      case 4:
        head.key = odd;
        break;
      case 5:
        head.rows = below(rng_, 2) == 0 ? static_cast<std::uint32_t>(odd) : head.rows - 1;
        break;
      case 6:
        head.first_row = static_cast<std::uint32_t>(odd);
        break;
      case 7:
        head.fan_out = static_cast<std::int32_t>(odd);
        break;
      case 8:
        head.method = static_cast<std::uint32_t>(odd);
        break;
      case 9:
        head.edges = below(rng_, 2) == 0 ? odd : head.edges + 1;
        break;
      default:
        head.bytes = below(rng_, 2) == 0 ? odd : head.bytes + 8;
    }
    if (below(rng_, 2) == 0)  // lengths that agree again
      head.bytes = head.kind == FrameKind::kSampled            ? sampled_bytes(head)
                   : static_cast<std::uint8_t>(head.kind) < 16 ? request_bytes(head)
                                                               : head.bytes;
    head.seal();
    std::memcpy(frame.data(), &head, sizeof head);
  }

  int from_, to_;
  Damage damage_;
  std::size_t victim_, seen_ = 0;
  Rng& rng_;
  std::vector<std::byte> in_, out_;
  std::size_t sent_ = 0;
  bool ended_ = false;
};

// Requests of one link, from the first to the last answer or to its end.
void episode(const Partition& of, Loop& loop, Rng& rng) {
  const auto counters = std::make_shared<LinkCounters>();
  const auto near = socket_pair(), far = socket_pair();
  auto asking = std::make_shared<AskingEnd>(near[0], 1, loop, counters);
  auto serving = std::make_shared<ServingEnd>(far[0], loop, of.data, counters);
  const auto there = static_cast<Damage>(below(rng, 2) == 0 ? 0 : below(rng, 8)),
             back = static_cast<Damage>(below(rng, 2) == 0 ? 0 : below(rng, 8));
  const bool large = below(rng, 50) == 0;  // answers in several pieces
  const std::size_t count = 1 + below(rng, large ? 8 : 150), most_rows = large ? 20'000 : 20;
  Wire out(near[1], far[1], there, below(rng, count), rng), in(far[1], near[1], back, below(rng, count), rng);

  const auto finished = std::make_shared<Finished>();
  const auto step = std::make_shared<StepRequests>(1, finished);
  std::vector<std::unique_ptr<Question>> questions;
  for (std::size_t i = 0; i < count; ++i) {
    questions.push_back(std::make_unique<Question>(rng, most_rows));
    step->asked.push_back(questions.back()->asked());
  }
  step->expect(count);
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i < count; ++i)
    numbers.push_back(asking->ask(step, step->asked[i].get(), [&](Piece& to, std::uint64_t n) { questions[i]->write(to, n); }));
  asking->flush();

  const bool gives_up = below(rng, 4) == 0;
  std::uint64_t given_up = 0;
  bool here = true, there_too = true;
  for (int quiet = 0; quiet < 3 && !step->done();) {
    bool moved = out.carry();
    if (there_too) there_too = serving->on_events(EPOLLIN | EPOLLOUT);
    for (std::size_t turns = below(rng, 4) + 1; there_too && turns > 0 && serving->waits_for_turn; --turns)
      serving->on_turn(), moved = true;
    moved |= in.carry();
    if (here && gives_up && below(rng, 4) == 0) {
      const std::size_t i = below(rng, count);
      if (step->asked[i]->state == Asked::State::kWaiting) ++given_up;
      asking->forget(numbers[i], "no longer wanted");
    }
    if (here) here = asking->on_events(EPOLLIN | EPOLLOUT);
    if (!there_too) ::shutdown(far[0], SHUT_RDWR);
    if (!here) asking->on_end();
    quiet = moved ? 0 : quiet + 1;
  }
  if (here) asking->on_end();
  if (there_too) serving->on_end();
  REQUIRE(step->done());
  REQUIRE(finished->take() == std::vector<std::uint64_t>{1});
  for (const int fd : {near[1], far[1]}) ::close(fd);

  const bool sound = there == Damage::kNone && back == Damage::kNone;
  const bool exact = there < Damage::kGarbage && back < Damage::kGarbage;
  for (std::size_t i = 0; i < count; ++i) {
    const Asked& asked = *step->asked[i];
    REQUIRE(asked.state != Asked::State::kWaiting);
    answered += asked.state == Asked::State::kAnswered, refused += asked.state == Asked::State::kRefused;
    lost += asked.state == Asked::State::kLost;
    REQUIRE(asked.state == Asked::State::kAnswered || !asked.why.empty() || !exact);
    questions[i]->check_structure(asked);
    if (exact) questions[i]->check_values(asked, of);
    if (exact && asked.state != Asked::State::kLost) REQUIRE(questions[i]->refused == (asked.state == Asked::State::kRefused));
    if (sound && given_up == 0) REQUIRE(asked.state != Asked::State::kLost);
  }
  forgotten += given_up;
  // A header that was damaged is noticed where it arrives, and counted.
  if (there == Damage::kNone && back == Damage::kNone) REQUIRE(counters->malformed == 0);
}

// More requests than an owner keeps, while it has no turn: it stops reading, and answers all of them later.
void flood(const Partition& of, Loop& loop, Rng& rng) {
  const auto counters = std::make_shared<LinkCounters>();
  const auto ends = socket_pair();
  auto asking = std::make_shared<AskingEnd>(ends[0], 1, loop, counters);
  auto serving = std::make_shared<ServingEnd>(ends[1], loop, of.data, counters);
  constexpr std::size_t kCount = 300'000;
  const auto step = std::make_shared<StepRequests>(1, std::make_shared<Finished>());
  Question question(rng, 1);  // the same again and again
  while (question.refused) question = Question(rng, 1);
  step->expect(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    step->asked.push_back(question.asked());
    REQUIRE(asking->ask(step, step->asked[i].get(), [&](Piece& to, std::uint64_t n) { question.write(to, n); }) == i + 1);
  }
  for (int i = 0; i < 1000; ++i) REQUIRE(asking->on_events(EPOLLOUT) && serving->on_events(EPOLLIN));
  while (!step->done()) {
    bool moved = false;
    while (serving->waits_for_turn) serving->on_turn(), moved = true;
    const std::uint64_t before = counters->answered_bytes + counters->served;
    REQUIRE(asking->on_events(EPOLLIN | EPOLLOUT) && serving->on_events(EPOLLIN | EPOLLOUT));
    REQUIRE(moved || serving->waits_for_turn || counters->answered_bytes + counters->served > before);  // no request was forgotten
  }
  for (const auto& asked : step->asked) question.check_structure(*asked), question.check_values(*asked, of);
  asking->on_end(), serving->on_end();
  passed += 2 * kCount;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t frames = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000,
                      seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  Rng rng(seed);
  const Partition of(rng);
  Loop loop("fuzz");
  std::uint64_t episodes = 0;
  for (; passed < frames; ++episodes) episode(of, loop, rng);
  const std::uint64_t between = passed;
  flood(of, loop, rng);
  std::printf("%" PRIu64 " frames of %" PRIu64 " links, %" PRIu64 " damaged: requests answered %" PRIu64 ", refused %" PRIu64
              ", lost %" PRIu64 " (%" PRIu64 " given up); %" PRIu64 " more in one flood\n",
              between, episodes, damaged, answered, refused, lost, forgotten, passed - between);
}
