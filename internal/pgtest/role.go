package pgtest

func runRole() {}
