module dlock.peers/told

go 1.26.0

require golang.org/x/sys v0.31.0
