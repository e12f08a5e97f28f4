for a in "4096 128" "1024 16" "2048 128"; do echo == $a; env -u OMP_NUM_THREADS timeout 60 python /tmp/int8/micro.py $a; done
