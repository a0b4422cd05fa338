#include <bit>

#include "kernels/cuda/emulator/machine.h"

// Pushes the callee-saved registers on the running stack, and stores the stack's top at *save.
// Continues on the stack whose top is `to`, where an earlier call pushed registers in the same way.
extern "C" void quire_emulator_switch(void** save, void* to);
asm(R"(
.text
.type quire_emulator_switch, @function
quire_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size quire_emulator_switch, . - quire_emulator_switch
)");

namespace quire::gpu::emulator {

// A thread runs until it must wait; then the next thread of its warp runs. If all threads of the
// warp wait, another warp runs, chosen by the CTA's WarpOrder.

void Emulator::ThreadMain() {
  Emulator& emulator = *active;
  if (UnderAsan()) {
    // The launcher switches to the first thread, and here ASan tells that thread the bounds of the
    // launcher's stack. Other threads need not ask.
    Context& launcher = emulator.launcher_;
    const void** bottom = launcher.stack_bytes == 0 ? &launcher.stack_bottom : nullptr;
    size_t* bytes = launcher.stack_bytes == 0 ? &launcher.stack_bytes : nullptr;
    __sanitizer_finish_switch_fiber(nullptr, bottom, bytes);
  }
  emulator.body_(emulator.body_context_);
  emulator.Return(*emulator.running_);
  __builtin_unreachable();
}

void Emulator::Switch(Context& from, Context& to, bool from_is_done) {
  if (UnderTsan()) {
    __tsan_switch_to_fiber(to.tsan_fiber, kWithoutOrder);
  }
  if (UnderAsan()) {
    __sanitizer_start_switch_fiber(
        from_is_done ? nullptr : &from.asan_fake_stack, to.stack_bottom, to.stack_bytes);
  }
  quire_emulator_switch(&from.stack_pointer, to.stack_pointer);
  if (UnderAsan()) {
    __sanitizer_finish_switch_fiber(from.asan_fake_stack, nullptr, nullptr);
  }
}

void Emulator::Return(Fiber& fiber) {
  if (!fiber.copies.empty()) {
    Fail(fiber,
         FaultKind::kCopyInFlight,
         "a thread returned with asynchronous copies in flight",
         fiber.at);
  }
  if (products_[fiber.warp].in_flight()) {
    Fail(fiber, FaultKind::kProductInFlight, "a thread returned with wgmma in flight", fiber.at);
  }
  if (!IsGuard(static_cast<const uint8_t*>(fiber.stack_bottom), sizeof(uint64_t))) {
    Fail(fiber, FaultKind::kStackOverflow, "the thread's stack overflowed", fiber.at);
  }
  Warp& warp = warps_[fiber.warp];
  const uint32_t bit = 1u << fiber.lane;
  for (uint32_t lanes = warp.waiting; lanes != 0; lanes &= lanes - 1) {
    const Fiber& other =
        fibers_[fiber.warp * kWarpSize + static_cast<uint32_t>(std::countr_zero(lanes))];
    if ((other.mask & bit) != 0) {
      fiber.wait = Wait::kReturned;
      Fail(other, FaultKind::kLaneMissing, "a lane of the mask has returned", other.at);
    }
  }
  fiber.wait = Wait::kReturned;
  warp.returned |= bit;
  --num_alive_;
  if (UnderTsan()) {
    __tsan_release(&tsan_launch_end);
  }
  if (num_alive_ == 0) {
    Switch(fiber, launcher_, true);
    __builtin_unreachable();
  }
  if (num_at_barrier_ == num_alive_) {
    ReleaseBarrier(nullptr);
  }
  Fiber* next = TakeNext(fiber);
  if (next == nullptr) {
    Fail(fiber,
         FaultKind::kDeadlock,
         "the threads that have not returned wait for each other",
         fiber.at);
  }
  running_ = next;
  threadIdx = next->index;
  Switch(fiber, *next, true);
}

// Runs other fibers until `fiber` has become runnable and is chosen.
void Emulator::Block(Fiber& fiber) {
  Fiber* next = TakeNext(fiber);
  if (next == nullptr) {
    Fail(fiber, FaultKind::kDeadlock, "all threads wait for each other", fiber.at);
  }
  running_ = next;
  threadIdx = next->index;
  Switch(fiber, *next, false);
}

// griddepcontrol.wait.
void Emulator::WaitForEarlierOperation(SourceLine at) {
  Fiber& me = *running_;
  me.at = at;
  if (!early_.is_running()) {
    return;
  }
  waiting_for_earlier_[me.warp] |= 1u << me.lane;
  me.wait = Wait::kEarlierOperation;
  Block(me);
  me.wait = Wait::kNothing;
}

Fiber* Emulator::TakeNext(const Fiber& after) {
  Fiber* next = TakeRunnable(after);
  if (next != nullptr || !early_.is_running()) {
    return next;
  }
  if (!early_.End()) {
    Fail(after,
         FaultKind::kEarlyWrite,
         "a kernel wrote to global memory before it waited for the operation before it",
         after.at);
  }
  MakeRunnable(waiting_for_earlier_);
  return TakeRunnable(after);
}

void Emulator::YieldToOtherWarps() {
  Fiber& me = *running_;
  const uint32_t own = 1u << me.warp;
  const uint32_t own_is_runnable = runnable_warps_ & own;
  const uint32_t own_lanes = warps_[me.warp].runnable;
  if (runnable_warps_ == own_is_runnable) {
    return;
  }
  runnable_warps_ &= ~own;
  warps_[me.warp].runnable = 0;
  Fiber* next = TakeRunnable(me);
  MakeRunnable(me.warp, own_lanes | 1u << me.lane);
  running_ = next;
  threadIdx = next->index;
  Switch(me, *next, false);
}

Fiber* Emulator::TakeRunnable(const Fiber& after) {
  // Returns the lowest set bit above position or, if there is none, the lowest set bit.
  auto next_bit = [](uint32_t bits, uint32_t position) {
    const uint32_t above = bits & ~((2u << position) - 1);
    return static_cast<uint32_t>(std::countr_zero(above != 0 ? above : bits));
  };
  if (runnable_warps_ == 0) {
    return nullptr;
  }
  const bool same_warp = warps_[after.warp].runnable != 0;
  uint32_t warp_index = after.warp;
  if (!same_warp) {
    const auto lowest = static_cast<uint32_t>(std::countr_zero(runnable_warps_));
    const auto highest = 31 - static_cast<uint32_t>(std::countl_zero(runnable_warps_));
    warp_index = order_ == WarpOrder::kRound          ? next_bit(runnable_warps_, after.warp)
                 : order_ == WarpOrder::kHighestFirst ? highest
                                                      : lowest;
  }
  const uint32_t lane =
      next_bit(warps_[warp_index].runnable, same_warp ? after.lane : kWarpSize - 1);
  Fiber& next = fibers_[warp_index * kWarpSize + lane];
  TakeFromRunnable(next);
  return &next;
}

void Emulator::TakeFromRunnable(const Fiber& fiber) {
  Warp& warp = warps_[fiber.warp];
  warp.runnable &= ~(1u << fiber.lane);
  if (warp.runnable == 0) {
    runnable_warps_ &= ~(1u << fiber.warp);
  }
}

void Emulator::MakeRunnable(uint32_t warp, uint32_t lanes) {
  if (lanes != 0) {
    warps_[warp].runnable |= lanes;
    runnable_warps_ |= 1u << warp;
  }
}

// Makes every lane runnable whose bit is 1, and then sets all bits to 0.
void Emulator::MakeRunnable(uint32_t (&lanes_of_warps)[kMaxWarps]) {
  for (uint32_t warp = 0; warp < kMaxWarps; ++warp) {
    MakeRunnable(warp, lanes_of_warps[warp]);
    lanes_of_warps[warp] = 0;
  }
}

}  // namespace quire::gpu::emulator
