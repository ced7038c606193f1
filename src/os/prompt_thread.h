// For threads that do little but must do it at once: they feed a disk that idles until they run.
#ifndef TERRACE_OS_PROMPT_THREAD_H_
#define TERRACE_OS_PROMPT_THREAD_H_

namespace terrace::os {

// Asks the kernel to run the calling thread soon after it wakes, before threads that compute: by a
// short slice (Linux 6.12 and later; anybody may) and by a better nice value (where permitted).
// What the kernel does not know or does not permit is left as it was.
void WakePromptly();

}  // namespace terrace::os

#endif  // TERRACE_OS_PROMPT_THREAD_H_
