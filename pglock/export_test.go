package pglock

// CheckKey is what each method does with its key.
var CheckKey = checkKey

// Unordered lets the sets of l take their locks in the order of the arguments.
func Unordered(l *Locker) { l.m.unordered = true }
