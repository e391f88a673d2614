DELETE FROM dlock_process WHERE process = $process
