package format

import "os"

// FolderSetting returns a text with the setting that names the folder of pools.
func FolderSetting() string {
	if os.Getenv("FARKV_SHM_DIR") == "" {
		return "$FARKV_SHM_DIR may name another"
	}
	return "$FARKV_SHM_DIR names it"
}
