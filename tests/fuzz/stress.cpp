// Threads ask over links at once, give up at random and see links end at random, while loops serve them. Built with
// ThreadSanitizer.
//
//     stress SECONDS [SEED]
#include <cinttypes>
#include <thread>

#include "served.hpp"

using namespace atta;
using namespace atta::fuzz;

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::uint64_t> steps{0}, answered{0}, refused{0}, lost{0}, links{0};

// What the interpreter's lock does for the links of a daemon.
class Peers {
 public:
  Peers(const Partition& of, std::vector<std::unique_ptr<Loop>>& loops) : of_(of), loops_(loops) { counters_->log.keep(100); }

  std::shared_ptr<AskingEnd> pick(Rng& rng) {
    const std::lock_guard<std::mutex> held(mutex_);
    std::erase_if(ends_, [](const auto& end) { return !end->alive(); });
    if (ends_.size() < 4) add(rng);
    if (below(rng, 20) == 0) REQUIRE(counters_->log.entries().size() <= 100);
    return ends_[below(rng, ends_.size())];
  }

 private:
  void add(Rng& rng) {
    const auto ends = socket_pair();
    Loop &near = *loops_[below(rng, loops_.size())], &far = *loops_[below(rng, loops_.size())];
    far.add(std::make_shared<ServingEnd>(ends[1], far, of_.data, counters_));
    ends_.push_back(std::make_shared<AskingEnd>(ends[0], 1, near, counters_));
    near.add(ends_.back());
    links.fetch_add(1);
  }

  const Partition& of_;
  std::vector<std::unique_ptr<Loop>>& loops_;
  std::shared_ptr<LinkCounters> counters_ = std::make_shared<LinkCounters>();
  std::mutex mutex_;
  std::vector<std::shared_ptr<AskingEnd>> ends_;
};

void step(const Partition& of, Peers& peers, Rng& rng, std::uint64_t number) {
  const auto finished = std::make_shared<Finished>();
  auto requests = std::make_shared<StepRequests>(number, finished);
  std::vector<std::unique_ptr<Question>> questions;
  const std::size_t count = 1 + below(rng, 8);
  for (std::size_t i = 0; i < count; ++i) {
    questions.push_back(std::make_unique<Question>(rng, below(rng, 10) == 0 ? 8000 : 50));
    requests->asked.push_back(questions.back()->asked());
  }
  requests->links.resize(count), requests->numbers.resize(count);
  requests->expect(count + 1);
  for (std::size_t i = 0; i < count; ++i) {
    Asked* asked = requests->asked[i].get();
    const auto link = peers.pick(rng);
    const std::uint64_t request = link->ask(requests, asked, [&](Piece& out, std::uint64_t n) { questions[i]->write(out, n); });
    if (request == 0) {
      asked->state = Asked::State::kLost, asked->why = "there is no link";
      requests->ended();
      continue;
    }
    requests->links[i] = link, requests->numbers[i] = request;
    if (below(rng, 2) == 0) link->flush();
    if (below(rng, 60) == 0) link->close();
  }
  requests->ended();
  for (const auto& link : requests->links)
    if (link != nullptr) link->flush();
  if (below(rng, 3) == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(below(rng, 300)));
    for (std::size_t i = 0; i < count; ++i)
      if (requests->links[i] != nullptr) requests->links[i]->forget(requests->numbers[i], "no longer wanted");
    REQUIRE(requests->done());
  } else {
    const auto until = Clock::now() + std::chrono::minutes(2);
    while (!requests->done()) {
      REQUIRE(Clock::now() < until);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  // From here on the memory belongs to this thread alone: ThreadSanitizer sees any later write.
  std::vector<std::uint64_t> told;
  while (told.empty()) told = finished->take();  // it is told of a moment after it is done
  REQUIRE(told == std::vector<std::uint64_t>{number});
  for (std::size_t i = 0; i < count; ++i) {
    const Asked& asked = *requests->asked[i];
    REQUIRE(asked.state != Asked::State::kWaiting);
    questions[i]->check_structure(asked);
    questions[i]->check_values(asked, of);
    answered += asked.state == Asked::State::kAnswered, refused += asked.state == Asked::State::kRefused;
    lost += asked.state == Asked::State::kLost;
  }
  ++steps;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  Rng rng(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  const Partition of(rng);
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t rounds = 0;
  for (; rounds == 0 || Clock::now() < until; ++rounds) {
    std::vector<std::unique_ptr<Loop>> loops;
    for (int i = 0; i < 3; ++i) loops.push_back(std::make_unique<Loop>("stress-" + std::to_string(i)));
    Peers peers(of, loops);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, seed = rng()] {
        Rng own(seed);
        for (int i = 0; i < 60; ++i) step(of, peers, own, 1 + below(own, 1000));
      });
    // All links end while steps are under way, the later ones find only links that are down.
    std::this_thread::sleep_for(std::chrono::milliseconds(below(rng, 400)));
    if (below(rng, 2) == 0)
      for (const auto& loop : loops) loop->stop();
    for (std::thread& thread : threads) thread.join();
  }
  std::printf("%" PRIu64 " rounds, %" PRIu64 " steps over %" PRIu64 " links: requests answered %" PRIu64 ", refused %" PRIu64
              ", lost %" PRIu64 "\n",
              rounds, steps.load(), links.load(), answered.load(), refused.load(), lost.load());
}
