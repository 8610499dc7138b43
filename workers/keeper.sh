# The session keeper: the main process of a sandbox. It needs bash (4.3+) and nothing else; cat, head, tail, wc and rm are used where an image has them.
#
# It owns the sandbox's shells and their output, so that every process of the service may die and come back. Two processes: the *feeder* reads frames
# from the host on stdin, puts payloads into files and passes each header on; the *keeper* (this shell, PID 1 of a container) holds all state, reads one
# pipe of headers and events, and is the only writer on stdout. Both sides of the protocol are described in workers/protocol.py.
#
# A session is an interactive bash. A command is a file that it sources, with output to a pipe of that command's own (a plain file would be truncated by
# `echo x >/dev/stdout`), drained into a file by a writer. The shell ends the stream with a mark that holds the exit code, then sends `d` on the event
# pipe; whoever reads a stream knows by the mark that it is complete, so an exit code never overtakes the output.
# Pipes are reached through /proc/<keeper>/fd: no mkfifo needed, and a command that closes descriptors cannot cut its shell off.

K_HAD_LC_ALL=${LC_ALL+set} K_LC_ALL=${LC_ALL-} K_UMASK=$(umask)
LC_ALL=C # bytes, not characters: lengths, slicing and matching below count bytes
umask 077
R=${ROCK_RUN_DIR:-/run/rock}
USERS=/run/rock-users # the files of other users' sessions: a folder that only root may list, and make files in
K=$$ N=0 SPARE_W='' SPARE_SLOT=''
FIRST=$((1280 * 1024)) # bytes of output that come with the end of a call; the host asks for what is beyond
INLINE=32768 # outputs below this are read by builtins (no fork); larger ones in slices by head
FILE_CAP=$((128 * 1024)) # KiB of output kept per stream; what is beyond is drained and lost, and the stream has no end mark
declare -A STATE SLOT OUT KEY RC TICK CHILD TAP KILLING KILLER HELD OOM UNTOLD RUNNER S_IN S_PID S_WRAP S_BUSY S_QUEUE S_GEN S_ENDED S_STUCK S_KEPT S_W S_WRITER S_SLOT S_USED S_PIDS S_TRAP S_TRACE S_USER S_EAR S_TTY T_IN T_KEYS T_GO T_FD T_POS T_BASE T_TOTAL T_SIZE T_PID T_WATCH T_GIVEN T_WAITING T_WRITER T_FREE T_FAR T_FROM T_FILES TALK
declare -A PAST # the calls answered last, by id: whatever the host forgets in a crash, they do not run again
STALE=() KEPT=() KILLERS=() RING=() RING_AT=0 RING_SIZE=1000

# What a session's shell sources after each command, with `$?` and the call's id as arguments: `$?` is given
# back at the end, for the next command to see. The jobs are those that k_victims spares later; environment and folder are for k_reopen. A prompt command
# could only delay the next command: nobody sees a prompt. A shell that has too few files left to redirect a command's output says 1 to each and runs none:
# it ends. Sourced again (see k_remind) it does nothing, nor for a call that it is not about.
FIN='\\builtin test "$2" = %s || \\builtin return "$1"
\\builtin printf "\\036%s %%s\\036" "$1" >|%q
\\exec >/dev/null 2>&1
\\builtin test "$1" != 1 || \\builtin : </dev/null >/dev/null 2>&1 || \\builtin exit 1
\\builtin jobs -p >|%q
\\builtin unset PROMPT_COMMAND
{ \\builtin export -p; \\builtin printf "builtin cd %%q\\n" "$PWD"; } >|%q
\\builtin printf "builtin return %%s\\n" "$1" >|%q
\\builtin printf "d %s %%s %%s\\n" "$1" "$-" >|%q
\\builtin return "$1"
'

# --- small parts ---------------------------------------------------------------------------------------------------------------------------

# Run first in every child: drop the keeper's descriptors, so that no child keeps another command's pipe open.
k_detach() {
  local fd
  for fd in "${OUT[@]}" "${S_W[@]}" "${S_IN[@]}" "${T_IN[@]}" "${T_KEYS[@]}" "${T_GO[@]}" "${T_FD[@]}" "$SPARE_W" "$X_OUT" "$X_ERR" "$X_RUN" "$F_RUN" "$NEVER" "$TURN"; do [[ $fd ]] && exec {fd}>&-; done
  trap - HUP INT TERM PIPE CHLD
}

# The environment and umask that the image gave, for what runs on behalf of the user; of it and the keeper, it is what the kernel kills for memory.
k_fresh() {
  printf 300 >/proc/self/oom_score_adj
  if [[ $K_HAD_LC_ALL ]]; then LC_ALL=$K_LC_ALL; else unset LC_ALL; fi
  export -n ROCK_RUN_DIR
  umask "$K_UMASK"
}

# Copy stdin to file $1 up to the cap, then only drain: the command must not die of SIGPIPE because its output is long. `tee` is the one tool that goes
# on reading when its file takes no more.
k_write() {
  k_detach
  exec {EV}>&- >/dev/null
  ulimit -f "$FILE_CAP"
  trap '' XFSZ
  if [[ $HAVE_TEE ]]; then
    LC_ALL=C exec tee -a "$1"
  else
    local x
    while IFS= read -r -d '' -n 4096 x || [[ $x ]]; do
      if ((${#x} < 4096)); then printf '%s\0' "$x" >>"$1"; else printf %s "$x" >>"$1"; fi
    done
  fi
}

# Is there room for the few processes that a command takes? A fork that fails is tried by bash for 15 s, and then ends the shell that wanted it: the keeper
# must not come to that in a sandbox that is at its limit. So it asks before it forks, and does without where it can.
k_room() {
  local now
  [[ $PIDS_MAX ]] || return 0
  IFS= read -r now <"$PIDS_FILE.current" && ((now + 6 <= PIDS_MAX))
}

# Where the kernel counts the processes of this sandbox (cgroup v2, then v1), and up to how many it lets there be; empty where nobody says.
k_find_limit() {
  PIDS_MAX=''
  for PIDS_FILE in /sys/fs/cgroup/pids /sys/fs/cgroup/pids/pids; do
    [[ -r $PIDS_FILE.max ]] && IFS= read -r PIDS_MAX <"$PIDS_FILE.max" && break
  done
  [[ $PIDS_MAX == max ]] && PIDS_MAX=''
}

# Have a writer ready before it is needed (made after each answer, see k_main): its fork stays off the step path.
k_spare() {
  local key
  WANT_SPARE=''
  SPARE_SLOT=$((++N))
  : >"$R/1.$SPARE_SLOT" || return
  exec {SPARE_W}> >(k_write "$R/1.$SPARE_SLOT")
  SPARE_WRITER=$!
  for key in "${!S_PIDS[@]}"; do S_PIDS[$key]+="/proc/$! "; done # no child of a command that runs just now
}

# How often the kernel killed something in this sandbox for want of memory (cgroup v2, then v1), in OOM_NOW; 0 where that cannot be seen.
k_oom_kills() {
  local name count file
  OOM_NOW=0
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [[ -r $file ]] || continue
    while read -r name count; do [[ $name == oom_kill ]] && OOM_NOW=$count; done <"$file"
    return
  done
}

# What is to be said to the host is gathered in SAY and written at once: each write is a message through the engine.
k_flush() {
  printf %s "$SAY"
  SAY=''
}

k_uptime() { read -r UP _ </proc/uptime; UP=${UP/./}; } # clock ticks since boot, comparable with a process's start time
k_pause() { read -r -t "$1" -u "$NEVER"; }

# --- output --------------------------------------------------------------------------------------------------------------------------------

# Send `data`: stream $2 of call $1 from byte $3 on, at most $4 bytes.
k_emit() {
  local f=$R/$2.${SLOT[$1]} off=$3 x tries=0 a
  if ((off == 0)); then
    while :; do
      IFS= read -r -N $INLINE x <"$f"
      ((${#x} >= INLINE)) && k_room && break # where no tool can be started, builtins read it all
      a=()
      mapfile -d '' a <"$f" || a=("$x")
      ((${#a[@]} < 2)) || k_settle ${#x}
      x="${a[*]: -1}"
      # The writer may be a moment behind the event; wait for the mark here rather than cost the host another question. The command may have printed one
      # of its own, with another code.
      if [[ $x == *$'\036'"$1 ${RC[$1]}"$'\036'* ]]; then
        WHOLE+=1 # all that the command printed was there, and is sent
        k_inline "$1" "$2"
        return
      elif [[ $5 != final ]] || ((++tries > 60)); then
        k_inline "$1" "$2"
        return
      fi
      k_pause 0.0005
    done
  fi
  k_emit_slice "$@"
}

# The large case, or one that goes on.
k_emit_slice() {
  local f=$R/$2.${SLOT[$1]} off=$3 n total=0
  ((off == 0)) || k_room || { SAY+="data $1 $2 $off 0 $off"$'\n'; return; }
  [[ -e $f ]] && total=$(wc -c <"$f")
  n=$((total - off))
  ((n > $4)) && n=$4
  ((n < 0)) && n=0
  SAY+="data $1 $2 $off $n $total"$'\n'
  if ((n > 0)); then
    k_flush
    if ((off == 0)); then head -c "$n" "$f"; else tail -c +$((off + 1)) "$f" | head -c "$n"; fi
  fi
}

# Keep of array a the first $1 bytes, which were there before it was read: where a file grows meanwhile, bash begins a new part as if there were a NUL.
k_settle() {
  local i left=$1
  for ((i = 0; i < ${#a[@]}; i++)); do
    ((${#a[i]} < left)) || { a=("${a[@]:0:i}" "${a[i]:0:left}"); return; }
    ((left -= ${#a[i]}))
  done
}

# The small case: the file is in array a, split at NULs, which bash cannot hold in a variable.
k_inline() {
  local n=0 i last=$((${#a[@]} - 1))
  for ((i = 0; i <= last; i++)); do ((n += ${#a[i]} + (i < last))); done
  SAY+="data $1 $2 0 $n $n"$'\n'
  if ((last > 0)); then
    k_flush
    printf '%s\0' "${a[@]:0:last}"
  fi
  ((last >= 0)) && SAY+=${a[last]}
  return 0
}

# Report the end of call $1, with its (first) output.
k_report() {
  WHOLE=''
  if [[ ${T_TOTAL[$1]} ]]; then
    SAY+="done $1 ${RC[$1]} ${STATE[$1]} ${OOM[$1]:--}"$'\n' # its output is followed apart
    return
  fi
  k_emit "$1" 1 0 $FIRST final
  [[ ${KEY[$1]} ]] || k_emit "$1" 2 0 $INLINE final
  SAY+="done $1 ${RC[$1]} ${STATE[$1]} ${OOM[$1]:--}"$'\n'
}

# The result of call $1 is stored, but its output is too long for that: keep it until the next command of its session, or until a few more one-off ones.
k_keep() {
  local key=${KEY[$1]}
  if [[ ! ${STATE[$1]} ]]; then return; fi
  if [[ $key && ${S_IN[$key]} ]]; then
    [[ ${S_KEPT[$key]} ]] && k_forget "${S_KEPT[$key]}"
    S_KEPT[$key]=$1
  else
    KEPT+=("$1")
    if ((${#KEPT[@]} > 4)); then
      k_forget "${KEPT[0]}"
      KEPT=("${KEPT[@]:1}")
    fi
  fi
}

# Forget call $1: the host has stored its result.
k_forget() {
  local s=${SLOT[$1]} key=${KEY[$1]}
  [[ ${T_TOTAL[$1]} ]] && k_tty_forget "$1"
  [[ ${TALK[$1]} && ${TALK[$1]} != "t$1 "* ]] && STALE+=("$R/u.$1")
  if [[ $s && $key && ${S_SLOT[$key]} == "$s" ]]; then
    : >"$R/1.$s" # the writer appends: from the start again
    S_USED[$key]=''
  elif [[ $s && $s == "$X_SLOT" ]]; then
    : >"$R/1.$s" && : >"$R/2.$s"
    X_USED=''
  elif [[ $s ]]; then
    : >"$R/1.$s"
    STALE+=("$R/1.$s")
    [[ -e $R/2.$s ]] && : >"$R/2.$s" && STALE+=("$R/2.$s")
  fi
  STALE+=("$R/p.$1" "$R/f.$1")
  [[ -e $R/i.$1 ]] && STALE+=("$R/i.$1")
  [[ -e $R/t.$1 ]] && STALE+=("$R/t.$1")
  [[ -e $R/k.$1 ]] && STALE+=("$R/k.$1")
  [[ -e $R/x.$1 ]] && STALE+=("$R/x.$1")
  unset "STATE[$1]" "SLOT[$1]" "KEY[$1]" "RC[$1]" "TICK[$1]" "CHILD[$1]" "TAP[$1]" "KILLING[$1]" "KILLER[$1]" "HELD[$1]" "OOM[$1]" "UNTOLD[$1]" "RUNNER[$1]" "TALK[$1]"
  if [[ ! ${PAST[$1]} ]]; then
    [[ ${RING[RING_AT]} ]] && unset "PAST[${RING[RING_AT]}]"
    RING[RING_AT]=$1 PAST[$1]=1 RING_AT=$(((RING_AT + 1) % RING_SIZE))
  fi
  if ((${#STALE[@]} > 64)) && k_room; then
    rm -f "${STALE[@]}"
    STALE=()
  fi
}

# --- sessions ------------------------------------------------------------------------------------------------------------------------------

# Parent of a session's shell: tells its pid, waits for its end whatever ends it. Job control gives the shell a process group of its own and keeps
# SIGINT at its default (an asynchronous child of a script would ignore it, and so would all it starts).
k_session() {
  local key=$1 in=$2 gen=$3 pid
  unset "S_IN[$key]"
  k_detach
  set -m
  ( k_fresh; exec {EV}>&-; k_shell "$key" ) <"/proc/$BASHPID/fd/$in" {in}>&- >/dev/null 2>&1 & # to read only: what runs in it cannot fill the pipe, and so block us
  pid=$!
  set +m # with job control on, `wait` would return when the shell is only stopped
  printf 'p %s %s %s\n' "$key" "$pid" "$gen" >&"$EV"
  exec {in}>&-
  wait "$pid"
  printf 'x %s %s %s\n' "$key" $? "$gen" >&"$EV"
}

# Open session $1; false when the keeper has too many files open.
k_open() {
  local key=$1 in
  exec {in}<> <(:)
  [[ $in ]] || return
  S_IN[$key]=$in S_BUSY[$key]='' S_QUEUE[$key]='' S_GEN[$key]=$((++N)) # a name may be used again before its former shell is gone
  k_session "$key" "$in" "$N" &
  S_WRAP[$key]=$!
  [[ ${S_USER[$key]} ]] && k_hear "$key"
  # The traps are how k_kill makes the shell drop the rest of a command. Two, used in turn: bash takes the one that was left by an interrupt for still
  # running, until another one has run. A trap of the user's own on INT would keep the command alive: it is the one thing that a timeout resets.
  printf '%s\n' 'PS1= PS2= HISTFILE=' '\builtin set +o history +H' "\\builtin trap '\\builtin trap - INT; \\builtin kill -INT \$\$' RTMAX RTMAX-1" >&"$in"
  [[ ${S_USER[$key]} ]] && printf '%s\n' '\builtin test -x . || \builtin cd || \builtin cd /' >&"$in"
  return 0
}

# Have an output pipe in S_W for the next command of session $1: that of the command before, if nothing else can hold it and its file is empty again,
# else the spare one. A pipe of its own for each command keeps late output of background jobs out of later answers; its writer costs two forks.
k_pipe() {
  # One whose writer was killed would end the shell that prints to it.
  [[ ${S_W[$1]} && ! ${S_USED[$1]} ]] && kill -0 "${S_WRITER[$1]}" || k_drop_pipe "$1"
  if [[ ! ${S_W[$1]} && ( ${S_USER[$1]} || ! $SPARE_W ) ]]; then k_room || { why=full; return 1; }; fi
  if [[ ! ${S_W[$1]} && ${S_USER[$1]} ]]; then
    k_user_pipe "$1" || return
  elif [[ ! ${S_W[$1]} ]]; then
    [[ ! $SPARE_W ]] || kill -0 "$SPARE_WRITER" || { exec {SPARE_W}>&-; SPARE_W=''; }
    [[ $SPARE_W ]] || k_spare
    [[ $SPARE_W ]] || { why=files; return 1; }
    S_W[$1]=$SPARE_W S_WRITER[$1]=$SPARE_WRITER S_SLOT[$1]=$SPARE_SLOT SPARE_W='' WANT_SPARE=1
  fi
  k_pids
  S_PIDS[$1]=" ${PIDS[*]} "
}

# Let go of the session's pipe. Its writer ends when all that still hold it do; the file goes with the call that used it.
k_drop_pipe() {
  local w=${S_W[$1]}
  [[ $w ]] || return
  exec {w}>&-
  [[ ${S_USED[$1]} ]] || STALE+=("$R/1.${S_SLOT[$1]}")
  [[ ${S_USER[$1]} ]] && STALE+=("${S_USER[$1]%%:*}.o${S_SLOT[$1]}")
  unset "S_W[$1]" "S_WRITER[$1]" "S_SLOT[$1]" "S_USED[$1]"
}

# Drop the pipe of session $1 if its last command left a process behind that may hold it.
k_check_pipe() {
  local pid
  k_pids
  [[ " ${PIDS[*]} " == "${S_PIDS[$1]}" ]] && return
  for pid in "${PIDS[@]}"; do
    [[ ${S_PIDS[$1]} == *" $pid "* ]] || { k_drop_pipe "$1"; return; }
  done
}

# All processes there are, in PIDS.
k_pids() {
  set +f
  PIDS=(/proc/[0-9]*)
  set -f
}

# Hand call $2 to the idle shell of session $1.
k_dispatch() {
  local key=$1 id=$2 w c f out slot from=/dev/null why=nospace
  if [[ ! ${T_TOTAL[$id]} ]]; then
    k_pipe "$key" && w=${S_W[$key]} slot=${S_SLOT[$key]} S_USED[$key]=1
  elif k_room; then
    k_tty_pipe "$key" "$id"
  else
    why=full
    false
  fi
  if (($?)) || ! k_command "$key" "$id"; then
    [[ ${T_TOTAL[$id]} ]] && k_tty_forget "$id"
    STATE[$id]=''
    SAY+="reject $id $why"$'\n'
    return 1
  fi
  if [[ ${S_KEPT[$key]} ]]; then
    k_forget "${S_KEPT[$key]}"
    unset "S_KEPT[$key]"
  fi
  SLOT[$id]=$slot OUT[$id]=$w STATE[$id]=running S_BUSY[$key]=$id
  k_uptime
  TICK[$id]=$UP
  # On one line, so that no prompt comes between. Where an interrupt drops the rest of the line, k_remind asks for the report.
  # What an EXIT trap prints comes after all redirections of the command are undone: for it the shell's own output is the pipe, too. Not under `set -x`,
  # which would trace our lines into it.
  [[ ${S_TRAP[$key]} && ! ${S_TRACE[$key]} ]] && printf '\\exec >%s 2>&1\n' "$out" >&"${S_IN[$key]}"
  printf '\\builtin . %q; \\builtin . %q "$?" %s\n' "$c" "$f" "$id" >&"${S_IN[$key]}"
  UNTOLD[$id]=1
}

# Ask the shell of session $1 for the report on call $2; it reads that when it is through with the command, and it does nothing if it has reported.
k_remind() {
  local f=$R/f.$2
  [[ ${S_USER[$1]} ]] && f=${S_USER[$1]%%:*}.f
  printf '\\builtin . %q "$?" %s\n' "$f" "$2" >&"${S_IN[$1]}"
}

# Write the two files that the shell of session $1 sources for call $2, whose names it leaves in c and f; the output goes to pipe $out.
k_command() {
  local key=$1 id=$2 a
  out=/proc/$K/fd/$w c=$R/p.$id f=$R/f.$id
  if [[ ${S_USER[$key]} ]]; then
    a=${S_USER[$key]%%:*}
    out=$a.o$slot c=$a.c f=$a.f
    printf '%s\n' "$id" >"$a.b" && printf "$FIN" "$id" "$id" "$out" "$a.v" "$a.e" "$f" "$id" "$a.v" >"$f" || return
    mapfile -d '' a <"$R/p.$id"
    printf '%s <%s >%s 2>&1\n' "$a" "$from" "$out" >"$c"
  else
    printf "$FIN" "$id" "$id" "$out" "$R/j.$key" "$R/e.$key" "$f" "$id" "/proc/$K/fd/$EV" >"$f"
    printf ' <%s >%s 2>&1\n' "$from" "$out" >>"$c"
  fi
}

# Start the next waiting call of session $1, if its shell is idle.
k_next() {
  local key=$1 id
  while [[ ! ${S_BUSY[$key]} && ${S_QUEUE[$key]} ]]; do
    id=${S_QUEUE[$key]%% *}
    S_QUEUE[$key]=${S_QUEUE[$key]#* }
    k_dispatch "$key" "$id"
  done
}

# The shell of session $1 ended with $2: so did its running call; the waiting ones never ran.
k_shell_ended() {
  local key=$1 id=${S_BUSY[$1]} in=${S_IN[$1]} w line again=''
  [[ $in ]] || return
  while [[ $id ]] && read -t 0 -u "$in" && IFS= read -r -t 0.1 -u "$in" line; do
    # Not a word of it was read: the shell was about to end for what came before (`set -t`), and a new one will run it, if it is still wanted.
    [[ ! ${KILLING[$id]} && $line == '\builtin . '*'; '*' "$?" '"$id" ]] && again=$id
  done
  if [[ $again ]]; then
    unset "OUT[$id]"
    STATE[$id]=queued
    [[ ${S_USER[$key]} || ${T_TOTAL[$id]} ]] || mapfile -d '' w <"$R/p.$id"
    [[ ${S_USER[$key]} || ${T_TOTAL[$id]} ]] || printf %s "${w[0]%' </dev/null >/proc/'*}" >"$R/p.$id" # where its output goes is decided anew
    w=''
  elif [[ $id ]]; then
    w=${OUT[$id]}
    printf '\036%s %s\036' "$id" "$2" >&"$w"
    if [[ ${KILLING[$id]} && ! ${HELD[$id]} ]]; then k_hold "$id" "$2" ended; else k_finish "$id" "$2" ended; fi
  fi
  if [[ ! $again ]]; then
    for w in ${S_QUEUE[$key]}; do
      [[ ${T_TOTAL[$w]} ]] && k_tty_forget "$w"
      STATE[$w]=''
      SAY+="reject $w ended"$'\n'
    done
  fi
  again+="${again:+ }${S_QUEUE[$key]}"
  exec {in}>&-
  k_drop_pipe "$key"
  [[ ${S_EAR[$key]} ]] && kill "${S_EAR[$key]}"
  unset "S_EAR[$key]"
  unset "S_IN[$key]" "S_PID[$key]" "S_WRAP[$key]" "S_BUSY[$key]" "S_QUEUE[$key]" "S_GEN[$key]"
  S_ENDED[$key]=$2
  SAY+="ended $key $2"$'\n'
  [[ $again && ${STATE[${again%% *}]} == queued ]] || return
  if ! k_room; then
    w=full
  elif k_reopen "$key" "${again%% *}"; then
    S_QUEUE[$key]=$again
    k_next "$key"
    return
  else
    w=files
  fi
  for id in $again; do
    STATE[$id]=''
    SAY+="reject $id $w"$'\n'
  done
}

# Open session $1 again after its shell ended, with the folder and the exported variables that the last whole command left; call $2 says so. May fail as
# k_open does.
k_reopen() {
  local e=$R/e.$1
  [[ ${S_USER[$1]} ]] && e=${S_USER[$1]%%:*}.e
  k_open "$1" || return
  printf '. %q\n' "$e" >&"${S_IN[$1]}"
  SAY+="reopened $2 ${S_ENDED[$1]}"$'\n'
  unset "S_ENDED[$1]"
}

# Call $1 has ended, but its killer is still at work: the answer, and the next command, wait until it has looked for the last time.
k_hold() {
  HELD[$1]="$2 $3"
  : >"$R/k.$1"
}

# Call $1 is over for good: answer, and start the next of its session.
k_done() {
  local key=${KEY[$1]}
  [[ ${STATE[$1]} == running ]] || return # told twice: by an event and by k_repair
  k_finish "$1" "$2" "$3"
  if [[ ! $key && $X_USED == "$1" ]]; then
    k_check_exec "$1"
  elif [[ $3 == done && $key ]]; then
    if [[ $WHOLE && ! ${KILLING[$1]} ]]; then k_check_pipe "$key"; else k_drop_pipe "$key"; fi
  fi
  if [[ $3 == done && $key && ${S_BUSY[$key]} == "$1" ]]; then
    S_BUSY[$key]=''
    k_next "$key"
  fi
}

# Call $1 is over with exit code $2; $3: done, or ended when its shell is gone too.
k_finish() {
  local id=$1 w=${OUT[$1]}
  [[ ${STATE[$id]} == running ]] || return
  STATE[$id]=$3 RC[$id]=$2
  unset "UNTOLD[$id]"
  if [[ $2 != 0 ]]; then
    k_oom_kills
    ((OOM_NOW > OOM_SEEN)) && OOM[$id]=oom
    OOM_SEEN=$OOM_NOW
  fi
  unset "OUT[$id]"
  [[ ${T_TOTAL[$id]} ]] && k_tty_end "$id" "$w"
  k_report "$id"
}

# --- sessions of another user --------------------------------------------------------------------------------------------------------------

# Their processes can open none of the keeper's pipes and files. For each such session, root makes some that belong to its user, in $USERS: `.c` the
# command, `.f` the report on it, `.e` folder and variables, `.oN` a FIFO for output, `.v` one for reports (and `.b`, root's, the call that they may be
# about). Root reads none of them but the FIFOs, and takes from `.v` only what it expects. S_USER holds `prefix:tool:uid:gid:groups:name:home:shell`.

# Look up user $1 (name or number, perhaps with `:group`) in the image's files, as engines do, into U_*. False when there is none.
k_user() {
  local user=${1%%:*} group='' name x id gid home shell passwd=/dev/null groups=/dev/null
  [[ -f /etc/passwd ]] && passwd=/etc/passwd
  [[ -f /etc/group ]] && groups=/etc/group
  [[ $1 == *:* ]] && group=${1#*:}
  U_NAME=$user U_UID='' U_GID=0 U_GROUPS='' U_HOME=/ U_SHELL='' U_LISTED=''
  [[ $user =~ ^[0-9]{1,10}$ ]] && U_UID=$((10#$user))
  while IFS=: read -r name x id gid x home shell || [[ $name ]]; do
    [[ ($name == "$user" || $id == "$user") && $id =~ ^[0-9]{1,10}$ && $gid =~ ^[0-9]{1,10}$ ]] || continue
    U_NAME=$name U_UID=$id U_GID=$gid U_HOME=${home:-/} U_SHELL=$shell U_LISTED=1
    break
  done <"$passwd"
  [[ $group =~ ^[0-9]{1,10}$ ]] && U_GID=$((10#$group)) && x=found || x=''
  while IFS=: read -r name _ id home || [[ $name ]]; do
    [[ $id =~ ^[0-9]{1,10}$ ]] || continue
    if [[ $group ]]; then
      [[ $name == "$group" ]] && U_GID=$id x=found
    elif [[ ,$home, == *,"$U_NAME",* && $U_LISTED ]]; then
      U_GROUPS+=${U_GROUPS:+,}$id
    fi
  done <"$groups"
  [[ $U_SHELL == */nologin || $U_SHELL == */false || $U_SHELL != /* ]] && U_SHELL=$BASH
  [[ $group ]] && U_LISTED=''
  [[ $U_UID && ( ! $group || $x ) ]] && ((U_UID < 2147483648 && U_GID < 2147483648))
}

# Let session $1 be one of user $2; false, with the reason in WHY, when that cannot be.
k_admit() {
  local key=$1 a=$USERS/$((++N)) tool x
  WHY=nouser
  k_user "$2" || return
  ((U_UID == EUID)) && [[ $2 != *:* || $U_GID == "${GROUPS[0]}" ]] && return # as the keeper's own
  WHY=oneuser
  [[ $EUID == 0 && -d $USERS && ! $ROCK_RUN_DIR ]] || return
  WHY=nospace
  : >"$a.b" && : >"$a.c" && : >"$a.f" && : >"$a.e" && : >"$a.w" || return
  WHY=noswitch
  mkfifo "$a.v" && chown "$U_UID:$U_GID" "$a.c" "$a.f" "$a.e" "$a.w" "$a.v" || return
  for tool in setpriv chroot su nsenter; do
    type -P "$tool" >/dev/null || continue
    case $tool in
      su) [[ $U_LISTED ]] || continue ;;
      nsenter) [[ ! $U_GROUPS ]] || continue ;;
    esac
    # It must become that user, stay the same process, reach its own files, and not be able to put any beside them; in time: no tool of the image may hold
    # the keeper up.
    x=''
    IFS= read -r -t 10 x < <(k_as "$tool" --noprofile --norc -c '[[ -r $1 && ! -w ${1%/*} ]] && echo $EUID $PPID' - "$a.c" </dev/null)
    [[ $x == "$U_UID $K" ]] || continue
    S_USER[$key]=$a:$tool:$U_UID:$U_GID:$U_GROUPS:$U_NAME:$U_HOME:$U_SHELL
    return 0
  done
  STALE+=("$a".{b,c,f,e,w,v})
  return 1
}

# Become the user in U_* by tool $1, as bash with the other arguments: the numbers from setpriv or coreutils' chroot; busybox has neither, but a su that
# knows users by name, and a nsenter that knows no groups. No descriptor beyond the first three comes along.
k_as() {
  local tool=$1 fd groups=--clear-groups
  shift
  set +f
  for fd in "/proc/$BASHPID/fd/"*; do
    fd=${fd##*/}
    ((fd > 2)) && exec {fd}>&-
  done
  [[ $U_GROUPS ]] && groups=--groups=$U_GROUPS
  export HOME=$U_HOME USER=$U_NAME LOGNAME=$U_NAME SHELL=$U_SHELL
  case $tool in
    setpriv) exec setpriv --reuid="$U_UID" --regid="$U_GID" "$groups" bash "$@" ;;
    chroot) exec chroot --skip-chdir --userspec="$U_UID:$U_GID" --groups="$U_GROUPS" / bash "$@" ;;
    su) exec su -m -s "$BASH" "$U_NAME" -c 'exec bash "$@"' bash "$@" ;;
    nsenter) exec nsenter -S "$U_UID" -G "$U_GID" bash "$@" ;;
  esac
}

# Have the user of session $1 in U_*, and the session's path prefix and tool in U_FILES and U_TOOL. False for a session of the keeper's own user.
k_whose() {
  local IFS=:
  [[ ${S_USER[$1]} ]] || return
  set -- ${S_USER[$1]}
  U_FILES=$1 U_TOOL=$2 U_UID=$3 U_GID=$4 U_GROUPS=$5 U_NAME=$6 U_HOME=$7 U_SHELL=$8
}

# Become the shell of session $1.
k_shell() {
  if k_whose "$1"; then
    k_as "$U_TOOL" --noprofile --norc --noediting -i
    exit 126 # never root's
  fi
  exec bash --noprofile --norc --noediting -i
}

# Have a new output pipe for session $1, as k_spare's, which its user's processes can open.
k_user_pipe() {
  local w f
  k_whose "$1"
  f=$U_FILES.o$((++N))
  : >"$R/1.$N" && mkfifo "$f" && chown "$U_UID:$U_GID" "$f" || return
  exec {w}<>"$f" || return
  k_write "$R/1.$N" <"$f" &
  S_W[$1]=$w S_WRITER[$1]=$! S_SLOT[$1]=$N
}

# Listen to the reports of session $1: one for each call that it was given. Lines of digits before it are its jobs.
k_hear() {
  k_whose "$1"
  k_listen "$1" "$U_FILES" &
  S_EAR[$1]=$!
}

k_listen() {
  local line jobs='' want last='' v
  k_detach
  exec {v}<>"$2.v" >/dev/null </dev/null
  while IFS= read -r -n 256 -u "$v" line; do
    if [[ $line =~ ^[0-9]{1,10}$ ]]; then
      ((${#jobs} < 65536)) && jobs+=$line$'\n'
    elif [[ $line =~ ^d\ (t?[0-9a-f]+)\ ([0-9]{1,3})\ ([A-Za-z]*)$ ]]; then
      IFS= read -r want <"$2.b"
      [[ $want == "${BASH_REMATCH[1]}" && $want != "$last" ]] || continue
      last=$want
      printf %s "$jobs" >"$R/j.$1"
      jobs=''
      printf '%s\n' "$line" >&"$EV"
    elif [[ $line =~ ^t\ (t?[0-9a-f]+)\ [0-9]{1,10}$ ]]; then
      IFS= read -r want <"$2.b"
      [[ $want == "${BASH_REMATCH[1]}" ]] && printf '%s\n' "$line" >&"$EV"
    fi
  done
}

# Which processes hold the output pipe of call $1, in HOLDERS: root may not look into another user's processes here, so one of that user's own does.
# Whatever it says, only that user's processes can come of it.
k_holders() {
  [[ $pipe ]] && k_whose "${KEY[$1]:--}" || return
  IFS= read -r -t 2 -n 8000 HOLDERS < <(k_as "$U_TOOL" --noprofile --norc -c '
    for p in /proc/[0-9]*; do [[ $p/fd/1 -ef $1 || $p/fd/2 -ef $1 ]] && printf "%s " "${p#/proc/}"; done' - "$U_FILES.o${SLOT[$1]}" </dev/null)
  HOLDERS=" $HOLDERS "
}

# Is process $1 one of user U_UID?
k_owned() {
  local name uid _
  while read -r name uid _; do
    [[ $name == Uid: ]] && { [[ $uid == "$U_UID" ]]; return; }
  done <"/proc/$1/status"
  return 1
}

# Session $1 is over for good: its files are not used again, so that whoever still holds one of them learns nothing.
k_part() {
  k_whose "$1" || return
  : >"$U_FILES.c"
  STALE+=("$U_FILES".{b,c,f,e,w,v})
  unset "S_USER[$1]"
}

# --- terminals -----------------------------------------------------------------------------------------------------------------------------
#
# A program at a pseudo-terminal is a call of its session: its input is a pipe that the keeper holds and a typist fills, its output goes to the file
# through a writer that tells of each part (`o`), so that whoever watches gets it at once. NUL bytes, mere padding to a terminal, are dropped.

SCREEN=$((1024 * 1024)) # bytes of a program's output that wait for a reader; then the program waits, and after SCREEN_WAIT seconds they are dropped
SCREEN_WAIT=10
TYPED=64 # inputs that may wait for a program that does not read

# Runs bash with the file $1 at a new pseudo-terminal, between our own input and output; exits as it does. For images without `script`.
PTY='import os, pty, select, sys
pid, tty = pty.fork()
if not pid:
    os.execvp("bash", ["bash", "--noprofile", "--norc", sys.argv[1]])
os.set_blocking(tty, False)
typed, source = b"", [0]
ended = 0
while True:
    ready, room, _ = select.select([tty] + (source if len(typed) < 65536 else []), [tty] if typed else [], [], 0.1)
    if tty in ready:
        try:
            data = os.read(tty, 65536)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        if not data:
            break
        while data:
            data = data[os.write(1, data):]
    elif ended:
        break
    if 0 in ready:
        data = os.read(0, 4096)
        typed += data
        source = source if data else []
    if room:
        try:
            typed = typed[os.write(tty, typed):]
        except BlockingIOError:
            pass
        except OSError:
            break
    if not ended:
        ended, status = os.waitpid(pid, os.WNOHANG)
if not ended:
    status = os.waitpid(pid, 0)[1]
os._exit(status >> 8 if status & 127 == 0 else 128 + (status & 127))
'

# What the session sources: file $1 at a terminal, by what the image has. `script` starts a shell by the name in SHELL; the file puts that back.
TTY_RUN='if \\builtin type -P script >/dev/null; then
  SHELL=/bin/sh \\builtin command script -qefc "exec bash --noprofile --norc "%q /dev/null
elif \\builtin type -P python3 >/dev/null; then
  \\builtin command python3 -IS -c %q %q
else
  \\builtin printf "\\036tty\\036"
  (\\builtin exit 127)
fi'

# What runs at the terminal: its size first (where there is no stty it stays as it is), then the report of our pid, by which it is resized.
TTY_FILE='stty rows %s cols %s echo 2>/dev/null
\\builtin printf "t %s %%s\\n" "$$" >|%q
SHELL=$ROCK_SHELL
[[ $SHELL ]] || \\builtin unset SHELL
\\builtin unset ROCK_SHELL
%s
'

# Program $2 of session $1 is to be run, at a terminal of size $3 (rows x columns). False, with the reason in WHY, when it cannot be.
k_tty_new() {
  local in keys go path
  WHY=nospace
  if k_whose "$1"; then
    path=$U_FILES.i$((++N))
    mkfifo "$path" && chown "$U_UID:$U_GID" "$path" && exec {in}<>"$path" || return
    T_FILES[$2]=$path
  else
    exec {in}<> <(:)
    path=/proc/$K/fd/$in
  fi
  WHY=files
  [[ $in ]] && exec {go}<> <(:)
  T_IN[$2]=$in T_GO[$2]=$go # so that the typist does not keep them
  [[ $go ]] && exec {keys}> >(k_typist "$2" >"$path")
  if [[ ! $keys ]]; then
    for in in $in $go; do exec {in}>&-; done
    STALE+=(${T_FILES[$2]})
    unset "T_IN[$2]" "T_GO[$2]" "T_FILES[$2]"
    return 1
  fi
  T_FROM[$2]=$path T_SIZE[$2]=$3 T_POS[$2]=0 T_BASE[$2]=0 T_TOTAL[$2]=0 T_GIVEN[$2]=0 T_WAITING[$2]=0 S_TTY[$1]=$2
  T_KEYS[$2]=$keys
}

# Copies the files whose calls it reads on stdin into the program's input. Each ends with a dot, so that a NUL before it can be told from none.
k_typist() {
  local id last a
  k_detach
  while IFS= read -r id; do
    mapfile -d '' a <"$R/t.$id"
    last=${a[-1]}
    unset "a[-1]"
    ((${#a[@]})) && printf '%s\0' "${a[@]}"
    printf %s "${last%.}"
    : >"$R/t.$id"
    printf 'k %s %s\n' "$id" "$1" >&"$EV"
  done
}

# Have the writer of program $2's output and the files that start it ready: k_dispatch goes on with w, slot and from.
k_tty_pipe() {
  local key=$1 id=$2 size=${T_SIZE[$2]} go=/proc/$K/fd/${T_GO[$2]} file=$R/w.$2 ear=/proc/$K/fd/$EV text
  slot=$((++N)) from=${T_FROM[$id]} T_SIZE[$id]=''
  : >"$R/1.$slot" || return
  if k_whose "$key"; then
    file=$U_FILES.w ear=$U_FILES.v text=$U_FILES.o$slot
    T_FILES[$id]+=" $text"
    mkfifo "$text" && chown "$U_UID:$U_GID" "$text" && exec {w}<>"$text" || return
    k_screen "$id" "$R/1.$slot" <"$text" 5<"$go" &
  else
    exec {w}> >(k_screen "$id" "$R/1.$slot" 5<"$go")
    [[ $w ]] || { why=files; return 1; }
  fi
  T_WRITER[$id]=$!
  mapfile -d '' text <"$R/u.${id#t}"
  printf "$TTY_FILE" "${size%x*}" "${size#*x}" "$id" "$ear" "$text" >"$file" || return
  printf -v text "$TTY_RUN" "$file" "$PTY" "$file"
  printf 'ROCK_SHELL=${SHELL-} \\builtin eval -- %q' "$text" >"$R/p.$id"
}

# The writer of program $1's output: into file $2, telling the keeper of each part. Waits on descriptor 5 while too much is unread. Bash reads with a
# time limit at a microsecond a byte, so while there is much the tools do it.
k_screen() {
  local x y n=0 size
  k_detach
  exec >/dev/null
  while IFS= read -r -N 1 x; do
    IFS= read -r -N 1023 -t 0.003 y
    x+=$y
    printf %s "$x" >>"$2" || continue
    k_screen_tell "$1" ${#x}
    # Only after a read that got all it asked for: one that ran out of time may have left bytes in bash's own buffer.
    while [[ $HAVE_BULK && ${#y} == 1023 ]]; do
      read -r -t 0.004 -u 5 # let more come: it is told only for its size
      read -r -t 0 || break
      dd bs=65536 count=1 | tr -d '\000' >>"$2"
      size=$(wc -c <"$2")
      ((size > n)) || break
      k_screen_tell "$1" $((size - n))
    done
  done
}

# Tell of $2 bytes more of program $1's output, of which $n are in the file.
k_screen_tell() {
  printf 'o %s %s\n' "$1" "$2" >&"$EV"
  (((n += $2) < SCREEN)) && return
  read -r -t $SCREEN_WAIT -u 5 || { printf 'o %s 0 lost\n' "$1" >&"$EV"; read -r -u 5; }
  n=0
}

# Somebody wants the output of program $1 from byte $2 on as soon as there is any.
k_tty_watch() {
  [[ ${T_TOTAL[$1]} ]] || { SAY+="unknown $1"$'\n'; return; }
  [[ " ${T_WATCH[$1]}" == *" $2 "* ]] || T_WATCH[$1]+="$2 "
  k_tty_show "$1"
}

# Serve those who watch program $1, and let it go on when all was read (or may be dropped: T_FREE).
k_tty_show() {
  local id=$1 off left=''
  for off in ${T_WATCH[$id]}; do
    if ((off < T_TOTAL[$id])) || [[ ${T_FREE[$id]} == over ]]; then k_tty_emit "$id" "$off"; else left+="$off "; fi
  done
  T_WATCH[$id]=$left
  ((T_TOTAL[$id] - T_BASE[$id] >= SCREEN)) || return
  [[ ${T_FREE[$id]} ]] || ((T_POS[$id] >= T_TOTAL[$id])) || return
  [[ ${T_FREE[$id]} == once ]] && T_FREE[$id]=''
  : >"$R/1.${SLOT[$id]}"
  T_BASE[$id]=${T_TOTAL[$id]}
  k_tty_seek "$id" "${T_TOTAL[$id]}"
  printf '\n' >&"${T_GO[$id]}"
}

# Nobody has read the output of program $1 for long: it may be dropped, unless that has just changed.
k_tty_lost() { [[ ! ${T_FREE[$1]} ]] && ((T_TOTAL[$1] - T_BASE[$1] >= SCREEN)) && T_FREE[$1]=once; }

# Open the output of program $1 at byte $2.
k_tty_seek() {
  local fd=${T_FD[$1]} x
  [[ $fd ]] && exec {fd}<&-
  exec {fd}<"$R/1.${SLOT[$1]}" || return
  T_FD[$1]=$fd T_POS[$1]=$2 T_FAR[$1]=''
  (($2 > T_BASE[$1])) && IFS= read -r -N $(($2 - T_BASE[$1])) -u "$fd" x
}

# Send `data`: output of program $1 from byte $2 on, as far as it is there. No fork when it goes on where the last one ended.
k_tty_emit() {
  local id=$1 off=$2 x='' n=$((T_TOTAL[$1] - $2))
  if ((off >= T_BASE[$id] && n > INLINE)); then
    ((n > 1048576)) && n=1048576
    SAY+="data $id 1 $off $n ${T_TOTAL[$id]}"$'\n'
    k_flush
    tail -c +$((off - T_BASE[$id] + 1)) "$R/1.${SLOT[$id]}" | head -c "$n"
    ((T_POS[$id] = off + n))
    T_FAR[$id]=1
    return
  fi
  if ((off >= T_BASE[$id] && n > 0)); then
    [[ ${T_FD[$id]} && ! ${T_FAR[$id]} && ${T_POS[$id]} == "$off" ]] || k_tty_seek "$id" "$off"
    IFS= read -r -N 65536 -u "${T_FD[$id]}" x
    ((T_POS[$id] = off + ${#x}))
  fi
  SAY+="data $id 1 $off ${#x} ${T_TOTAL[$id]}"$'\n'"$x"
}

# Give the terminal of program $1 its size, once it is there. Another user's is touched by that user alone: it says itself where it is.
k_tty_resize() {
  local size=${T_SIZE[$1]} pid=${T_PID[$1]} key=${KEY[$1]:--}
  [[ $pid && $size =~ ^[0-9]+x[0-9]+$ ]] || return
  T_SIZE[$1]=''
  if k_whose "$key"; then
    ( k_as "$U_TOOL" --noprofile --norc -c 'exec stty rows "$1" cols "$2" <"/proc/$3/fd/0"' - "${size%x*}" "${size#*x}" "$pid" </dev/null >/dev/null ) &
  else
    ( k_detach; exec stty rows "${size%x*}" cols "${size#*x}" <"/proc/$pid/fd/0" >/dev/null ) &
  fi
}

# TALK: call $1 types its line to the program of session $2, or starts one; $3 is `quit` when only the former makes sense. The answer names the program,
# from where its output was not given to anybody yet, and from where it comes after the line.
k_talk() {
  local id=$1 key=$2 program=${S_TTY[$2]}
  [[ ${STATE[$id]} || ${PAST[$id]} ]] && { k_ask "$id"; return; }
  if [[ $program && ! ${KILLING[$program]} ]]; then
    [[ $program == t* ]] || { SAY+="reject $id terminal"$'\n'; return; }
    k_tty_room "$id" "$program" || return
    TALK[$id]="$program ${T_GIVEN[$program]} ${T_TOTAL[$program]}" STATE[$id]=talk
    printf '%s\n' "$id" >&"${T_KEYS[$program]}"
  elif [[ $3 == quit ]]; then
    SAY+="reject $id noprogram"$'\n'
    return
  elif ! k_room; then
    SAY+="reject $id full"$'\n'
    return
  else
    TALK[$id]="t$id 0 0" STATE[$id]=talk
    k_submit TTY "t$id" "$key" 50x200
  fi
  k_ask "$id"
}

# TYPE: call $1 types into program $2; answered when that is done.
k_type() {
  [[ ${STATE[$1]} ]] && { k_ask "$1"; return; }
  [[ ${T_KEYS[$2]} ]] || { SAY+="reject $1 noprogram"$'\n'; return; }
  k_tty_room "$1" "$2" || return
  STATE[$1]=typing KEY[$1]=$2
  printf '%s\n' "$1" >&"${T_KEYS[$2]}"
}

k_tty_room() {
  ((T_WAITING[$2] < TYPED)) || { SAY+="reject $1 deaf"$'\n'; return 1; }
  ((T_WAITING[$2] += 1))
}

k_tty_typed() { [[ ${T_WAITING[$1]} ]] && ((T_WAITING[$1] -= 1)); }

# Program $1 is over; $2 is its output pipe, at whose end the mark is.
k_tty_end() {
  local w=$2 key=${KEY[$1]}
  exec {w}>&-
  [[ ${S_TTY[$key]} == "$1" ]] && unset "S_TTY[$key]"
  k_tty_mute "$1"
  [[ $1 == t* ]] && k_keep "$1"
}

# Nobody types into program $1 any more.
k_tty_mute() {
  local in=${T_IN[$1]} keys=${T_KEYS[$1]} id
  [[ $in ]] || return
  exec {in}>&- {keys}>&-
  unset "T_IN[$1]" "T_KEYS[$1]" "T_PID[$1]"
  for id in "${!STATE[@]}"; do
    [[ ${STATE[$id]} == typing && ${KEY[$id]} == "$1" ]] && { STATE[$id]=closed; k_ask "$id"; }
  done
}

k_tty_forget() {
  local fd=${T_FD[$1]} go=${T_GO[$1]} key=${KEY[$1]}
  k_tty_mute "$1"
  [[ ${S_TTY[$key]} == "$1" ]] && unset "S_TTY[$key]"
  [[ $fd ]] && exec {fd}<&-
  [[ $go ]] && exec {go}>&-
  STALE+=("$R/u.${1#t}" "$R/w.$1" ${T_FILES[$1]})
  unset "T_GO[$1]" "T_FD[$1]" "T_POS[$1]" "T_BASE[$1]" "T_TOTAL[$1]" "T_SIZE[$1]" "T_WATCH[$1]" "T_GIVEN[$1]" "T_WAITING[$1]" "T_WRITER[$1]" "T_FREE[$1]" "T_FAR[$1]" "T_FROM[$1]" "T_FILES[$1]"
}

# --- one-off commands ----------------------------------------------------------------------------------------------------------------------

# Scripts of ours use short names: theirs must not be those of k_exec.
k_script() {
  local p d t e s
  umask "$K_UMASK"
  eval "$1"
}

# Run call $1 in a fresh subshell, stdout and stderr apart.
k_exec() {
  local id=$1 slot=$2 out err
  k_detach
  exec {out}> >(k_write "$R/1.$slot") {err}> >(exec {out}>&-; k_write "$R/2.$slot")
  k_exec_user "$id"
}

# The script of call $1 in a[0], its standard input in `in`.
k_input() {
  mapfile -d '' a <"$R/p.$1"
  in=/dev/null
  [[ -e $R/i.$1 ]] && in=$R/i.$1
}

# Run the user's script of call $1 with output to $out and $err, and report its end.
k_exec_user() {
  local in child
  k_input "$1"
  id=$1 # scripts.execute knows this name
  set -m
  ( exec <"$in" >&"$out" 2>&"$err" {out}>&- {err}>&- {EV}>&-; k_fresh; set +m; eval "${a[0]}" ) &
  child=$!
  set +m
  printf 'c %s %s %s\n' "$id" "$child" "$out" >&"$EV"
  wait "$child"
  k_exec_end "$id" $?
}

# Call $1 ended with $2: both marks, then the event.
k_exec_end() {
  printf '\036%s %s\036' "$1" "$2" >&"$out"
  printf '\036%s %s\036' "$1" "$2" >&"$err"
  printf 'd %s %s\n' "$1" "$2" >&"$EV"
}

# Runs the one-off commands whose ids it reads on stdin, one after the other: forked ahead, as its pipes and writers are, because a fork costs a millisecond.
k_runner() {
  local id out=$X_OUT err=$X_ERR
  X_OUT='' X_ERR=''
  k_detach
  while IFS= read -r id; do k_exec_user "$id"; done
}

# Runs our own file scripts, whose calls and slots it reads on stdin, one after the other: a reader sees what a writer has finished. They end with `return`;
# their output cannot be truncated from inside, and goes straight to the files.
k_filer() {
  local id slot out err in
  k_detach
  set +m
  while read -r id slot; do
    printf 'c %s %s\n' "$id" "$BASHPID" >&"$EV"
    exec {out}>>"$R/1.$slot" {err}>>"$R/2.$slot"
    k_input "$id"
    k_script "${a[0]}" <"$in" >&"$out" 2>&"$err"
    k_exec_end "$id" $?
    exec {out}>&- {err}>&-
  done
}

k_start_filer() {
  [[ $F_RUN ]] && exec {F_RUN}>&-
  exec {F_RUN}> >(k_filer)
  F_PID=$!
}

# Have pipes and writers ready for the next one-off command, used again and dropped by the rules of a session's (see k_pipe).
k_spare_exec() {
  WANT_X=''
  [[ $X_OUT ]] && return
  X_SLOT=$((++N)) X_USED=''
  : >"$R/1.$N" && : >"$R/2.$N" || return
  exec {X_OUT}> >(k_write "$R/1.$X_SLOT")
  exec {X_ERR}> >(k_write "$R/2.$X_SLOT")
  exec {X_RUN}> >(k_runner)
  X_PID=$!
}

# One-off command $1 used those pipes and is over: may the next one?
k_check_exec() {
  local pid
  if [[ $WHOLE == 11 && ! ${KILLING[$1]} ]]; then
    k_pids
    [[ " ${PIDS[*]} " == "$X_PIDS" ]] && return
    for pid in "${PIDS[@]}"; do
      [[ $X_PIDS == *" $pid "* ]] || { WHOLE=; break; }
    done
    [[ $WHOLE ]] && return
  fi
  k_drop_exec
}

k_drop_exec() {
  exec {X_RUN}>&- {X_OUT}>&- {X_ERR}>&-
  X_RUN='' X_OUT='' X_ERR='' X_SLOT='' X_USED='' WANT_X=1
}

# --- ending what runs ----------------------------------------------------------------------------------------------------------------------

# Put into V what call $id started: descendants of $1 that are newer than tick $2 and no older job of the session, and whoever holds its output pipe.
# LOOKED are all processes that were looked at, LOST those that were gone when their turn came.
k_victims() {
  local root=$1 tick=$2 pipe=$3 p s more=1 ppid=() born=() pids=()
  local -A in_tree=([$root]=1) old=()
  V=() LOOKED=() LOST=()
  set +f
  if [[ $4 && -e $4 ]]; then while read -r p; do old[$p]=1; done <"$4"; fi
  for p in /proc/[0-9]*; do
    p=${p#/proc/}
    IFS= read -r s <"/proc/$p/stat" || { LOST+=("$p"); continue; }
    LOOKED+=("$p")
    k_fields
    set -- $s
    [[ $1 == Z || $p == "$K" || $p == "$BASHPID" ]] && continue
    ((${20} < tick)) && continue # on a busy host nearly all of them
    pids+=("$p")
    ppid[p]=$2 born[p]=${20}
  done
  while ((more)); do
    more=0
    for p in "${pids[@]}"; do
      [[ ${in_tree[$p]} || ! ${in_tree[${ppid[p]}]} ]] && continue
      [[ ${ppid[p]} == "$root" && ${old[$p]} ]] && continue
      in_tree[$p]=1 more=1
      V+=("$p")
      SEEN[$p]=${born[p]}
    done
  done
  for p in "${pids[@]}"; do
    [[ ${in_tree[$p]} ]] && continue
    [[ $pipe && (/proc/$p/fd/1 -ef $pipe || /proc/$p/fd/2 -ef $pipe) ]] || { [[ $HOLDERS == *" $p "* ]] && k_owned "$p"; } || continue
    V+=("$p")
    SEEN[$p]=${born[p]}
  done
  set -f
}

# End call $1: INT, then TERM, then KILL to all it started, as far as needed. A session's shell $2 is stopped until they are dead, so that it starts nothing
# new, and then made to drop the rest of the command. In a loop of its own bash does so at SIGINT. Where it waits for a child it would ignore that if the
# child did not die of SIGINT itself, or run a trap of the user's and go on: there signal $4 has it run our trap (see k_open), which interrupts it for good.
# Only there, because an interrupt from a trap at an unlucky moment can crash bash. When nothing helps, the shell is killed.
# Without a shell, $3 is the main process of a one-off command and a victim too.
# The next command waits for the `q` at the end.
k_kill() {
  local id=$1 shell=$2 child=$3 stop=$4 w=${OUT[$1]} pipe='' sig round p s root=${2:-$3} V=() HOLDERS=''
  local -A told=() SEEN=() ends=()
  [[ ! $w && ${TAP[$id]} ]] && exec {w}>"/proc/${RUNNER[$id]}/fd/${TAP[$id]}"
  [[ $w ]] && pipe=/proc/$BASHPID/fd/$w # our own copy: it stays when the keeper closes its end
  k_uptime
  ends=([INT]=$((UP + 25)) [TERM]=$((UP + 40)) [KILL]=$((UP + 250))) # the answer is to come within a second
  for round in 1 2 3; do
    kill -STOP "$root"
    for sig in INT TERM KILL; do
      k_signal_victims "$sig" "${ends[$sig]}" && break
    done
    [[ $shell ]] && k_interrupt "$shell" "$stop"
    for ((s = 0; s < 25; s++)); do
      k_is_over "$id" && break 2
      k_pause 0.008
    done
  done
  # A shell that has reported, or is at work, only wants time: the machine is busy.
  while [[ $shell ]] && ((UP < ${ends[KILL]})) && ! k_is_over "$id" && { k_marked "$id" || { k_stat "$shell" && [[ $STATUS == R ]]; }; }; do
    k_pause 0.02
    k_uptime
  done
  [[ $shell ]] && ! k_is_over "$id" && kill -KILL "$shell"
  # What KILL ended stood still, and could not get away by forking; what ended by itself could, unless it is looked for while all stand still.
  k_victims "$root" "${TICK[$id]}" "$pipe" "$R/j.${KEY[$id]}"
  [[ $sig == KILL && ${#V[@]} == 0 ]] || k_freeze "$root" "$id" "$pipe"
  for p in "${!SEEN[@]}"; do # those too that lost their parent meanwhile
    k_stat "$p" && [[ $BORN == "${SEEN[$p]}" ]] && kill -KILL "$p"
  done
  k_thaw
  ((BASHPID != K)) && { printf 'q %s\n' "$id" >&"$EV"; return; }
  # At the process limit this is the keeper itself, which cannot wait for room in the pipe that it reads.
  [[ $w && $w != "${OUT[$id]}" ]] && exec {w}>&-
  k_handle q "$id"
}

# Has the keeper heard of the end of call $1? Where it is itself at work here, for want of room, it has not heard anything, and looks.
k_is_over() { [[ -e $R/k.$1 ]] || { ((BASHPID == K)) && k_marked "$1"; }; }

# Send $1 to the victims, each once (a handler that is at work is not disturbed), and wait for their end until tick $2, however slow everything is: the
# caller's answer waits, too. A look reads all of /proc, and eight killers that do so all the time take the machine from those whom they wait for: so
# it is done again only when all that were found have ended, and there may be others. True when all are dead.
k_signal_victims() {
  local p tries left pauses=(0.002 0.005 0.005 0.01 0.02 0.03 0.04)
  k_holders "$id"
  for ((tries = 0; ; tries++)); do
    if [[ $1 == KILL && $tries == 0 ]]; then
      k_freeze "$root" "$id" "$pipe"
    else
      k_victims "$root" "${TICK[$id]}" "$pipe" "$R/j.${KEY[$id]}"
      [[ $child ]] && V+=("$child")
    fi
    left=''
    for p in "${V[@]}"; do
      k_lives "$p" || continue
      left=1
      [[ ${told[$1$p]} ]] || kill -"$1" "$p"
      told[$1$p]=1
      kill -CONT "$p"
    done
    [[ $1 == KILL && $tries == 0 ]] && k_thaw
    [[ $left ]] || return 0
    while :; do
      k_pause "${pauses[tries < 6 ? tries : 6]}"
      for p in "${V[@]}"; do k_lives "$p" && break; done || { [[ $1 == KILL ]] && return; break; }
      k_uptime
      ((UP < $2)) || return 1
      ((tries++))
    done
  done
}

# Does process $1 run, or could it?
k_lives() { k_stat "$1" && [[ $STATUS != Z ]]; }

# Make the stopped shell $1, whose children are dead, drop the rest of its command, and go on.
k_interrupt() {
  local p signal=$2
  if ((round == 1 && ${#SEEN[@]} == 0)); then
    signal=INT
    k_pids
    for p in "${PIDS[@]}"; do
      # A child that ended by itself just now: the shell is still to collect it.
      k_stat "${p#/proc/}" && [[ $STATUS == Z && $PARENT == "$1" ]] && { signal=$2; break; }
    done
  fi
  k_marked "$id" || kill -"$signal" "$1" # or the command is over, and the shell reports already
  kill -CONT "$1"
  k_remind "${KEY[$id]}" "$id"
}

# Keep of s, a line that the kernel tells of a process, what follows its name. That may hold anything, but looking from the end takes long.
k_fields() {
  s=${s#*) }
  [[ $s != *')'* ]] || s=${s##*) }
}

# What the kernel tells of process $1, in STATUS, PARENT and BORN (ticks). False when there is none.
k_stat() {
  local s
  IFS= read -r s <"/proc/$1/stat" || return
  k_fields
  set -- $s
  STATUS=$1 PARENT=$2 BORN=${20}
}

# Is the end mark of call $1 in its output?
k_marked() {
  local x
  IFS= read -r -N $INLINE x <"$R/1.${SLOT[$1]}"
  [[ $x == *$'\036'"$1 "* ]]
}

# Stop all victims of call $2, those below $1 and those that hold pipe $3; k_thaw follows. Once those that were found stand still, and a look finds no
# other and loses none that could have been one, there is none: who could have started it was seen. That holds up nobody else. Only where they fork
# faster than they are found, or are another user's, does a container stop as a whole: one signal stops all but PID 1 and us, and what is not meant goes
# on afterwards; one of us at a time, or two would stop each other for good.
k_freeze() {
  FROZEN=''
  if [[ ${S_USER[${KEY[$2]:--}]} ]] || ! k_stop "$@"; then
    [[ $K == 1 ]] || return
    k_take_turn
    k_asleep
    FROZEN=1
    kill -STOP -1
    k_holders "$2"
    k_look "$@"
  fi
}

k_look() {
  k_victims "$1" "${TICK[$2]}" "$3" "$R/j.${KEY[$2]}"
  [[ $child ]] && V+=("$child")
}

# Stop the victims one by one; false when that came to no end.
k_stop() {
  local p n tries standing='' fresh
  local -A stopped=() known=()
  for ((tries = 0; tries < 6; tries++)); do
    k_look "$@"
    fresh=''
    for p in "${LOST[@]}"; do [[ ${known[$p]} ]] || fresh=1; done
    for p in "${LOOKED[@]}"; do known[$p]=1; done
    for p in "${V[@]}"; do
      unset "known[$p]"
      [[ ${stopped[$p]} ]] && continue
      kill -STOP "$p"
      stopped[$p]=1 fresh=1
    done
    [[ $fresh || ! $standing ]] || return 0
    standing=''
    for ((n = 0; n < 10; n++)); do
      k_moves || { standing=1; break; }
      k_pause 0.003
    done
  done
  return 1
}

# Is one of V not at a stand yet?
k_moves() {
  local p
  for p in "${V[@]}"; do k_stat "$p" && [[ $STATUS != [TtZX] ]] && return; done
  return 1
}

# Note which processes are stopped by the user's own will, in ASLEEP.
k_asleep() {
  local p s
  ASLEEP=()
  set +f
  for p in /proc/[0-9]*; do
    IFS= read -r s <"$p/stat" && k_fields && [[ $s == T* ]] && ASLEEP+=("${p#/proc/}")
  done
  set -f
}

# Let go on what k_freeze stopped in a container, but for what was stopped before.
k_thaw() {
  [[ $FROZEN ]] || return
  FROZEN=''
  kill -CONT -1
  ((${#ASLEEP[@]})) && kill -STOP "${ASLEEP[@]}"
  printf '\n' >&"$TURN"
}

# Wait until no other of us has stopped all the rest. One that dies meanwhile is found by k_go_on.
k_take_turn() {
  local turn=''
  while [[ ! $turn ]]; do
    if ((BASHPID != K)); then
      read -r -N 1 -u "$TURN" turn
    else
      read -r -t 1 -N 1 -u "$TURN" turn # what counts is whether it was read, not whether that was in time
      [[ $turn ]] || k_go_on
    fi
  done
  printf '%s\n' "$BASHPID" >"$R/turn"
}

# Close session $1: its shell and everything below it. A stopped shell without children makes no new ones, so that nothing else need be stopped.
k_close() {
  local pid=${S_PID[$1]} child='' pipe='' HOLDERS='' V=()
  local -A SEEN=() TICK=([-]=0) KEY=() # whenever they were started
  [[ $pid ]] || return
  kill -STOP "$pid"
  k_victims "$pid" 0 ''
  ((${#V[@]})) || { kill -KILL "$pid"; return; }
  k_freeze "$pid" - ''
  kill -KILL "$pid" "${V[@]}"
  k_thaw
}

# --- requests ------------------------------------------------------------------------------------------------------------------------------

# RUN and EXEC: a call id is accepted once; repeated, it is answered with what is known, so the host may always submit again.
k_submit() {
  local verb=$1 id=$2 key=$3
  [[ ${STATE[$id]} || ${PAST[$id]} ]] && { k_ask "$id"; return; }
  if [[ $verb != RUN || ( ! ${S_IN[$key]} && ${S_ENDED[$key]} ) ]]; then k_prepare "$@" || return; fi
  [[ ${S_IN[$key]} ]] || { SAY+="reject $id nosession"$'\n'; return; }
  if [[ ${S_TTY[$key]} && ! ${KILLING[${S_TTY[$key]}]} ]]; then
    if [[ ${S_TTY[$key]} == t* ]]; then SAY+="reject $id tty"$'\n'; else SAY+="reject $id terminal"$'\n'; fi
    return
  fi
  if [[ $verb == TTY ]]; then k_tty_new "$key" "$id" "$4" || { SAY+="reject $id $WHY"$'\n'; return; }; fi
  KEY[$id]=$key STATE[$id]=queued
  S_QUEUE[$key]+="$id "
  if [[ ${S_BUSY[$key]} ]]; then SAY+="queued $id"$'\n'; else k_next "$key"; fi
}

# What k_submit does first where there is not simply a session to run call $2 in; false when that is all, or when it cannot be.
k_prepare() {
  local verb=$1 id=$2 key=$3
  k_room || { SAY+="reject $id full"$'\n'; return 1; }
  case $verb in
    EXEC)
      k_begin_exec "$id" "$key"
      return 1 ;;
    OPEN)
      [[ ${S_IN[$key]} ]] && { SAY+="reject $id exists"$'\n'; return 1; }
      k_part "$key"
      if [[ $4 != - ]]; then k_admit "$key" "$4" || { SAY+="reject $id $WHY"$'\n'; return 1; }; fi
      k_open "$key" || { k_part "$key"; SAY+="reject $id files"$'\n'; return 1; } ;;
    *) [[ ${S_IN[$key]} || ! ${S_ENDED[$key]} ]] || k_reopen "$key" "$id" || { SAY+="reject $id files"$'\n'; return 1; } ;;
  esac
  unset "S_ENDED[$key]"
}

# Start one-off command $1, of kind $2.
k_begin_exec() {
  local id=$1 key=$2
  if [[ $key == pipe && $X_OUT && ! $X_USED ]] && ! kill -0 "$X_PID"; then k_drop_exec; fi
  if [[ $key == pipe && $X_OUT && ! $X_USED ]]; then
    k_pids
    SLOT[$id]=$X_SLOT STATE[$id]=running X_USED=$id X_PIDS=" ${PIDS[*]} "
    k_uptime
    TICK[$id]=$UP UNTOLD[$id]=1
    RUNNER[$id]=$X_PID
    printf '%s\n' "$id" >&"$X_RUN"
    return
  fi
  [[ $key == pipe ]] && WANT_X=1
  SLOT[$id]=$((++N)) STATE[$id]=running
  k_uptime
  TICK[$id]=$UP
  : >"$R/1.$N" && : >"$R/2.$N" || { STATE[$id]=''; SAY+="reject $id nospace"$'\n'; return; }
  UNTOLD[$id]=1
  if [[ $key == file ]]; then
    kill -0 "${F_PID:-0}" && [[ $F_RUN ]] || k_start_filer
    RUNNER[$id]=$F_PID
    printf '%s %s\n' "$id" "$N" >&"$F_RUN"
  else
    k_exec "$id" "$N" &
    RUNNER[$id]=$!
  fi
}

# What is known of call $1.
k_ask() {
  case ${STATE[$1]} in
    '') if [[ ${PAST[$1]} ]]; then SAY+="reject $1 past"$'\n'; else SAY+="unknown $1"$'\n'; fi ;;
    running)
      k_uptime
      SAY+="start $1 $((UP - TICK[$1]))"$'\n'
      unset "UNTOLD[$1]"
      ;;
    queued) SAY+="queued $1"$'\n' ;;
    closed) SAY+="closed $1"$'\n' ;;
    typing) ;;
    talk) SAY+="talk $1 ${TALK[$1]}"$'\n'; k_ask "${TALK[$1]%% *}" ;;
    *) k_report "$1" ;;
  esac
}

k_cancel() {
  local id=$1 key=${KEY[$1]}
  case ${STATE[$id]} in
    running)
      [[ ${KILLING[$id]} ]] && return
      [[ ${T_TOTAL[$id]} ]] && { T_FREE[$id]=1; k_tty_show "$id"; } # what nobody reads must not keep the shell from its report
      KILLING[$id]=1
      # What is to be killed has not told its pid yet: k_handle comes back here when it does.
      [[ ${CHILD[$id]} || ( $key && ${S_PID[$key]} ) ]] || { KILLING[$id]=early; return; }
      if [[ $STOP_SIGNAL == RTMAX ]]; then STOP_SIGNAL=RTMAX-1; else STOP_SIGNAL=RTMAX; fi
      set -- "$id" "${key:+${S_PID[$key]}}" "${CHILD[$id]}" "$STOP_SIGNAL"
      if k_room; then
        k_kill "$@" &
        KILLERS+=($!) KILLER[$id]=$!
      else
        k_kill "$@"
      fi
      ;;
    queued)
      S_QUEUE[$key]=${S_QUEUE[$key]/"$id "/}
      [[ ${T_TOTAL[$id]} ]] && k_tty_forget "$id"
      STATE[$id]=''
      SAY+="reject $id withdrawn"$'\n'
      ;;
  esac
}

# Do now what k_cancel had to put off for call $1.
k_kill_early() {
  [[ $1 && ${KILLING[$1]} == early ]] || return
  KILLING[$1]=''
  k_cancel "$1"
}

# One line from the feeder (upper case) or from a child (lower case). Bash copies a function's whole text whenever it calls it, so what belongs to a
# step is apart from the rest, here and in the functions that this calls.
k_handle() {
  [[ $2 ]] || return # an empty subscript is an error that bash leaves every function for
  case $1 in
    d) k_reported "$2" "$3" "$4" ;;
    RUN)
      [[ $4 == trap ]] && S_TRAP[$3]=1
      if [[ $5 == nospace ]]; then SAY+="reject $2 nospace"$'\n'; else k_submit RUN "$2" "$3"; fi ;;
    ACK) k_forget "$2" ;;
    *) k_handle_rest "$@" ;;
  esac
}

# The shell of call $1 reports exit code $2 and its options $3.
k_reported() {
  [[ ${KILLING[$1]} == early ]] && KILLING[$1]=''
  [[ $3 == *x* ]] && S_TRACE[${KEY[$1]:--}]=1 || unset "S_TRACE[${KEY[$1]:--}]"
  if [[ ${KILLING[$1]} ]]; then k_hold "$1" "$2" done; else k_done "$1" "$2" done; fi
}

# The lines that no step needs.
k_handle_rest() {
  case $1 in
    q) unset "KILLER[$2]"; if [[ ${HELD[$2]} ]]; then k_done "$2" ${HELD[$2]}; else KILLING[$2]=''; fi ;;
    p) [[ ${S_GEN[$2]} == "$4" ]] && S_PID[$2]=$3 && k_kill_early "${S_BUSY[$2]}" ;;
    c) CHILD[$2]=$3 TAP[$2]=$4; k_kill_early "$2" ;;
    x) [[ ${S_GEN[$2]} == "$4" ]] && k_shell_ended "$2" "$3" ;;
    o) [[ ${T_TOTAL[$2]} ]] && { ((T_TOTAL[$2] += $3)); [[ $4 ]] && k_tty_lost "$2"; k_tty_show "$2"; } ;;
    k) [[ ${STATE[$2]} == typing ]] && { STATE[$2]=closed; k_ask "$2"; }; k_tty_typed "$3" ;;
    t) [[ ${T_TOTAL[$2]} ]] && { T_PID[$2]=$3; k_tty_resize "$2"; } ;;
    OPEN | EXEC | TTY)
      if [[ $5 == nospace ]]; then SAY+="reject $2 nospace"$'\n'; else k_submit "$1" "$2" "$3" "$4"; fi ;;
    TALK) if [[ $5 == nospace ]]; then SAY+="reject $2 nospace"$'\n'; else k_talk "$2" "$3" "$4"; fi ;;
    TYPE) if [[ $5 == nospace ]]; then SAY+="reject $2 nospace"$'\n'; else k_type "$2" "$3"; fi ;;
    SIZE) T_SIZE[$3]=$4; k_tty_resize "$3"; STATE[$2]=closed; k_ask "$2" ;;
    GIVEN) [[ ${T_TOTAL[$3]} ]] && T_GIVEN[$3]=$4 ;;
    WATCH) k_tty_watch "$2" "$4" ;;
    READ) if [[ ${T_TOTAL[$2]} ]]; then k_tty_emit "$2" "$4"; else [[ ${SLOT[$2]} ]] && k_emit "$2" "$3" "$4" 1048576 || SAY+="data $2 $3 $4 0 0"$'\n'; fi ;;
    KILL) k_cancel "$2" ;;
    KEEP) k_keep "$2" ;;
    CLOSE)
      if [[ ${S_IN[$3]} ]]; then
        if k_room; then
          k_close "$3" &
          KILLERS+=($!)
        else
          k_close "$3"
        fi
        STATE[$2]=closed
        k_shell_ended "$3" 137
      elif [[ ${S_ENDED[$3]} ]]; then
        STATE[$2]=closed
      fi
      unset "S_ENDED[$3]"
      k_part "$3"
      if [[ ${STATE[$2]} ]]; then k_ask "$2"; else SAY+="reject $2 nosession"$'\n'; fi ;;
    ASK) k_ask "$2" ;;
    SYNC) SAY+=$'\n'"sync $2"$'\n' ;;
  esac
}

# Store $3 bytes of stdin in file $1. $2 is `0` for text, `b0` for bytes that may hold NUL, with another number to append.
k_payload() {
  local n=$3 x ok=1
  [[ $2 == 0 || $2 == b0 || $2 == - ]] && { : >"$1" || ok=''; }
  if [[ $2 != b* ]]; then
    IFS= read -r -N "$n" x
    printf %s "$x" >>"$1" || ok=''
  elif k_room && k_head_is_exact; then
    head -c "$n" >>"$1" || ok=''
  else
    while ((n > 0)); do
      IFS= read -r -d '' -n "$n" x || break
      ((n -= ${#x}))
      printf %s "$x" >>"$1" || ok=''
      ((n > 0)) && { printf '\0' >>"$1"; ((n -= 1)); }
    done
  fi
  [[ $ok ]]
}

# Does `head -c` leave the rest of a pipe unread? Busybox's does not.
k_head_is_exact() {
  [[ $HEAD_EXACT ]] || HEAD_EXACT=$(printf abcdef | { head -c 3 >/dev/null; read -r -N 3 x; [[ $x == def ]] && echo yes || echo no; })
  [[ $HEAD_EXACT == yes ]]
}

# Reads frames from the host. A header is `VERB id a b length .`, then that many bytes and a newline; a frame cut short by a host that died is completed by
# the next host's padding and fails the check of that newline.
k_feed() {
  local verb id a b n end x f bad full=''
  local -A passed=() # calls that the keeper knows: they may be running, so their files stay as they are when the host submits them again
  for id in "${!STATE[@]}"; do passed[$id]=1; done
  k_detach
  while IFS=' ' read -r verb id a b n end; do
    [[ $end == . ]] || continue
    bad=''
    if ((n > 0)); then
      f=$R/p.$id
      [[ $verb == PUT ]] && f=$R/$a.$id
      [[ $verb == KEEPER || ${passed[$id]} ]] && f=/dev/null # a keeper is running already
      x=-
      [[ $verb == PUT ]] && x=$b
      k_payload "$f" "$x" "$n" || bad=nospace
      IFS= read -r x
      [[ $x ]] && continue
    fi
    case $verb in
      KEEPER) ;;
      PUT) [[ $bad ]] && full=$id ;;
      [A-Z]*)
        [[ $full == "$id" ]] && bad=nospace
        case $verb in
          RUN | OPEN | EXEC) [[ $bad ]] || passed[$id]=1 ;;
          ACK | KEEP) unset "passed[$id]" ;;
        esac
        printf '%s %s %s %s %s\n' "$verb" "$id" "$a" "$b" "$bad" >&"$EV" ;;
    esac
  done
}

# What no event tells: the feeder or a shell's parent killed from inside (`kill -9 -1` spares only PID 1), a shell that stopped itself, a shell that cannot
# report any more (`ulimit -n 3`, `set -r`, a closed descriptor).
k_tick() {
  local key pid state
  kill -0 "$FEEDER" || { k_room && k_start_feeder; }
  k_go_on
  for key in "${!STATE[@]}"; do
    [[ ${STATE[$key]} == running && ! ${KILLING[$key]} && ! ${UNTOLD[$key]} && ! ${T_TOTAL[$key]} ]] && k_repair "$key"
  done
  for key in "${!T_WATCH[@]}"; do
    # Its writer is dead: no mark will come any more.
    [[ ${T_WATCH[$key]} && ${STATE[$key]} != running && ${STATE[$key]} != queued ]] && ! kill -0 "${T_WRITER[$key]:-0}" && ! k_unheard && T_FREE[$key]=over && k_tty_show "$key"
  done
  for key in "${!KILLER[@]}"; do
    kill -0 "${KILLER[$key]}" || k_unheard || k_lost_killer "$key"
  done
  for key in "${!RUNNER[@]}"; do
    [[ ${STATE[$key]} == running && ! ${KILLING[$key]} ]] || continue
    kill -0 "${RUNNER[$key]}" || k_unheard || k_lost_runner "$key"
  done
  for key in "${!S_WRAP[@]}"; do
    kill -0 "${S_WRAP[$key]}" || { k_unheard || k_shell_ended "$key" 137; continue; }
    [[ ${S_PID[$key]} ]] || k_find_shell "$key"
    pid=${S_PID[$key]}
    [[ ${S_BUSY[$key]} && $pid && ! ${KILLING[${S_BUSY[$key]}]} ]] || { S_STUCK[$key]=''; continue; }
    k_stat "$pid" && state=$STATUS || state=''
    if [[ $state == T ]]; then
      kill -CONT "$pid"
    elif [[ $state == S && ${S_STUCK[$key]} != *"${S_BUSY[$key]}" ]]; then
      k_remind "$key" "${S_BUSY[$key]}" # while the command runs it waits in the pipe
      S_STUCK[$key]=reminded-${S_BUSY[$key]}
    elif [[ $state == S ]] && ! read -t 0 -u "${S_IN[$key]}"; then
      # It has read the reminder, sleeps, and did not report. Seen twice, it is no race.
      if [[ ${S_STUCK[$key]} == stuck-* ]]; then kill -KILL "$pid"; fi
      S_STUCK[$key]=stuck-${S_BUSY[$key]}
    fi
  done
}

# Whoever ends a call or a session (see k_freeze) must not be stopped, nor keep the turn, or leave the others stopped, when it is killed.
k_go_on() {
  local pid alive=() holder=''
  for pid in "${KILLERS[@]}"; do
    k_stat "$pid" && [[ $PARENT == "$K" && $STATUS != Z ]] || continue
    alive+=("$pid")
    [[ $STATUS == T ]] && kill -CONT "$pid"
  done
  KILLERS=("${alive[@]}")
  IFS= read -r holder <"$R/turn"
  if [[ ! $holder || $holder == "$K" ]] || read -r -t 0 -u "$TURN" || { k_stat "$holder" && [[ $STATUS != Z ]]; }; then
    DEAD_HOLDER=''
  elif [[ $holder == "$DEAD_HOLDER" ]]; then
    printf '\n' >&"$TURN" # seen twice, it is not just that the next one has taken the turn and not yet said so
  else
    DEAD_HOLDER=$holder
  fi
  ((${#alive[@]})) && return
  # The feeder is stopped by those who stop all, of whom none is left to let them go on; a one-off command can only have stopped itself.
  if k_stat "$FEEDER" && [[ $STATUS == T ]]; then
    if [[ $K == 1 ]]; then kill -CONT -1; else kill -CONT "$FEEDER"; fi
  fi
  for pid in "${RUNNER[@]}" "${CHILD[@]}"; do
    k_stat "$pid" && [[ $STATUS == T ]] && kill -CONT "$pid"
  done
}

# Are there events to be read? Who is gone, found so after this says no, has told nothing that is still to come.
k_unheard() { read -t 0 -u "$EV"; }

# Tell the start of what runs for 20 ms or more: a short command has ended by then, and saves everybody the message.
k_tell() {
  local id
  k_uptime
  for id in "${!UNTOLD[@]}"; do ((UP - TICK[$id] >= 2)) && k_ask "$id"; done
}

# Answer call $1 if its end mark is there although its event never came: whatever became of that, nobody waits for ever.
k_repair() {
  local x
  IFS= read -r -N $INLINE x <"$R/1.${SLOT[$1]}"
  [[ $x == *$'\036'"$1 "*$'\036'* ]] || return
  x=${x##*$'\036'"$1 "}
  k_done "$1" "${x%%$'\036'*}" done
}

# Whoever waited for one-off command $1 was killed: end the streams and answer in its place.
k_lost_runner() {
  local f
  for f in 1 2; do printf '\036%s 137\036' "$1" >>"$R/$f.${SLOT[$1]}"; done
  k_done "$1" 137 done
}

# Whoever was to end call $1 was killed from inside: another does it, if there is still something to do.
k_lost_killer() {
  unset "KILLER[$1]"
  if [[ ${HELD[$1]} ]]; then
    k_done "$1" ${HELD[$1]}
  else
    KILLING[$1]=''
    k_cancel "$1"
  fi
}

# The pid of the shell of session $1, should its event have been lost: the child of its parent.
k_find_shell() {
  local p
  k_pids
  for p in "${PIDS[@]}"; do
    k_stat "${p#/proc/}" && [[ $PARENT == "${S_WRAP[$1]}" ]] && S_PID[$1]=${p#/proc/}
  done
}

k_start_feeder() {
  k_feed <&0 &
  FEEDER=$!
}

# Have in LINE the next one that the feeder or a child tells, none if none comes within $1 seconds. A timed read costs five system calls a byte, another
# one; a line is written as a whole, so its rest is there. The time may be over just when the byte was read: what counts is whether it was.
k_line() {
  LINE=''
  IFS= read -r -t "$1" -N 1 -u "$EV" LINE
  [[ $LINE && $LINE != $'\n' ]] || { LINE=''; return; }
  local rest
  IFS= read -r -u "$EV" rest
  LINE+=$rest
}

k_main() {
  local wait
  exec 2>/dev/null
  trap : HUP INT TERM PIPE
  set -m
  [[ -d $R ]] || mkdir -p "$R"
  exec {EV}<> <(:)
  exec {NEVER}<> <(:)
  exec {TURN}<> <(:)
  printf '\n' >&"$TURN"
  type -P tee >/dev/null && HAVE_TEE=1 || HAVE_TEE=''
  type -P dd tr wc >/dev/null && HAVE_BULK=1 || HAVE_BULK=''
  type -P head >/dev/null || INLINE=$((1 << 30)) # no tools for slices: builtins read it all
  k_find_limit
  k_oom_kills
  OOM_SEEN=$OOM_NOW
  k_start_feeder
  printf 'ready 1\n'
  TICKED=$SECONDS
  while :; do
    wait=1
    ((${#UNTOLD[@]})) && wait=0.02
    k_line $wait
    [[ $LINE ]] && k_handle $LINE
    ((${#UNTOLD[@]})) && k_tell
    if ((SECONDS > TICKED)); then
      TICKED=$SECONDS
      k_tick
    fi
    [[ $SAY ]] && k_flush
    [[ $WANT_SPARE ]] && k_room && k_spare
    [[ $WANT_X ]] && k_room && k_spare_exec
  done
}
set -f +H
k_main
