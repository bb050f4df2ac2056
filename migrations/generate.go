package migrations

//go:generate go run ./gengoose -dir goose
