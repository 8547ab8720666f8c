// A symmetric context switch between stacks, the base of the host device's GPU threads.
//
//   fiber_make(top, size, entry)   creates a fiber on the stack that ends at `top`; entry() must never return
//   fiber_switch(&save, to)        suspends the running context into `save` and continues `to`
//
// On x86-64 and AArch64 a switch saves the callee-saved registers in a few instructions (6 to 9 ns). Other
// architectures use ucontext, which makes two system calls per switch (150 ns). -DLLMC_FIBER_UCONTEXT=1 forces it, for
// tests.
#pragma once
#include <cstddef>
#include <cstdint>

#if !defined(LLMC_FIBER_UCONTEXT)
#if defined(__x86_64__) || defined(__aarch64__)
#define LLMC_FIBER_UCONTEXT 0
#else
#define LLMC_FIBER_UCONTEXT 1
#endif
#endif
#if LLMC_FIBER_UCONTEXT
#include <ucontext.h>
#endif

namespace llmc::host {

using FiberHandle = void*;

inline void** aligned_stack_top(void* top) {
    return reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~static_cast<uintptr_t>(63));
}

#if LLMC_FIBER_UCONTEXT

inline FiberHandle fiber_make(void* top, size_t size, void (*entry)()) {
    char* bottom = static_cast<char*>(top) - size;
    char* at = reinterpret_cast<char*>(aligned_stack_top(top)) - ((sizeof(ucontext_t) + 63) & ~size_t{63});
    ucontext_t* context = reinterpret_cast<ucontext_t*>(at);
    getcontext(context);
    context->uc_stack.ss_sp = bottom;
    context->uc_stack.ss_size = static_cast<size_t>(at - bottom);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}
__attribute__((noinline)) inline void fiber_switch(FiberHandle* save, FiberHandle to) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

#elif defined(__x86_64__)

// Pushes the six callee-saved registers, swaps stacks, pops, and leaves by an indirect jump: the CPU would predict a
// `ret` to return to the caller and mispredict every time.
extern "C" __attribute__((naked, noinline)) inline void llmc_fiber_switch(void**, void*) {
    asm volatile(
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
        "popq %rcx\n jmpq *%rcx\n");
}
inline FiberHandle fiber_make(void* top, size_t, void (*entry)()) {
    void** sp = aligned_stack_top(top);
    *--sp = nullptr;  // return address of entry, which never returns, so backtraces end here
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}

#else  // AArch64: x19 to x30 and d8 to d15

extern "C" void llmc_fiber_switch(void**, void*);
asm(".text\n.weak llmc_fiber_switch\n.p2align 4\nllmc_fiber_switch:\n sub sp, sp, #160\n"
    " stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n stp x25,x26,[sp,#48]\n"
    " stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n"
    " stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n mov x9, sp\n str x9,[x0]\n mov sp, x1\n"
    " ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n"
    " ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n"
    " ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n add sp, sp, #160\n br x30\n");
inline FiberHandle fiber_make(void* top, size_t, void (*entry)()) {
    void** sp = aligned_stack_top(top) - 20;
    for (int i = 0; i < 20; i++) sp[i] = nullptr;
    sp[11] = reinterpret_cast<void*>(entry);  // x30
    return sp;
}

#endif

#if !LLMC_FIBER_UCONTEXT
__attribute__((always_inline)) inline void fiber_switch(FiberHandle* save, FiberHandle to) {
    llmc_fiber_switch(save, to);
}
#endif

}  // namespace llmc::host
