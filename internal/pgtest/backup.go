package pgtest

import "path/filepath"

// Backup is a copy of a server's data folder, from which servers can be
// started with FromBackup.
type Backup struct {
	folder *folder
	binDir string
}

func (b *Backup) dataDir() string { return filepath.Join(b.folder.path, "data") }

// Close removes the copy, as the end of the process does.
func (b *Backup) Close() error { return b.folder.close() }
