package pglock

// CheckKey is what each method does with its key.
var CheckKey = checkKey
