// Package supervise runs a command so that it, and everything that it has started, ends when it has to: on demand, when
// a deadline passes, and when the program that started it is killed.
//
//	pglock (the wrapper)      in its shell's process group
//	└─ pglock-guard           in a process group of its own, where no terminal reaches it
//	   └─ the command         leads the group that signals, terminal and kills go to
//	      └─ …
//
// The wrapper tells the guard by a pipe until when the command may run, and the guard ends it when that time has passed
// without a later one: also while the wrapper is stopped or starved. A closed pipe means that the wrapper is gone.
//
// On Linux the guard is the reaper of the command's descendants (PR_SET_CHILD_SUBREAPER), so that it finds and ends
// those too that have left the group or lost their parent; the kernel ends the command if the guard is killed
// (PR_SET_PDEATHSIG), and the wrapper, a reaper as well, then ends the rest. Elsewhere the guard reaches the process group
// alone, and nothing ends a command whose guard was killed before its wrapper.
//
// See https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html.
package supervise
