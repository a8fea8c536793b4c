#!/usr/bin/env bash
# One evening on one GPU: demonstrations, supervised start, a judge, the loop; the same command resumes it.
#
#   scripts/one_gpu.sh [CONFIG] [key=value ...]        CONFIG: gemma3_270m unless named
#   MINUTES=30 scripts/one_gpu.sh ...                  stops after so long, as Ctrl-C does
#   PACK=out.tar.gz                                    where the run is packed at the end (default: RUN.tar.gz; PACK=no)
#   scripts/one_gpu.sh --dry-run ...                   says what would be done
#
# On the next machine: tar -xzf RUN.tar.gz -C runs, then the same command (docs/one_gpu.md).
# PER_TYPE=16 is the number of demonstrations of each task type. The judge is trained on episodes of the supervised
# start with the environment's own reward (EPISODES=5000) and on JUDGE_DEMOS=24 further demonstrations a type, so that it
# knows successes of types which the start never solves (0: none); the loop's actor and critic see neither.
# JUDGE=no: the config's models.orm; that is so wherever the config asks for the environment's reward (label.judge).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
  if [[ -x "$here/.venv/bin/python" ]]; then python="$here/.venv/bin/python"; else python="$(command -v python3)"; fi
fi
webrl=("$python" -m webrl.cli)

dry=no config="" settings=()
for word in "$@"; do
  case "$word" in
    --dry-run) dry=yes ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "one_gpu: unknown option $word; see --help" >&2; exit 2 ;;
    *=*) settings+=("$word") ;;
    *) [[ -z "$config" ]] || { echo "one_gpu: one CONFIG at most, found $config and $word" >&2; exit 2; }
      config="$word" ;;
  esac
done
config="${config:-gemma3_270m}"
minutes="${MINUTES:-0}"
[[ "$minutes" =~ ^[0-9]{1,5}$ ]] || { echo "one_gpu: MINUTES=$minutes is not a number of minutes" >&2; exit 2; }
[[ "$minutes" == 0 ]] || command -v timeout >/dev/null \
  || { echo "one_gpu: MINUTES needs timeout (coreutils)" >&2; exit 2; }

per_type="${PER_TYPE:-16}" judge_demos="${JUDGE_DEMOS:-24}" episodes="${EPISODES:-5000}"
# NAME VALUE LEAST: refuses what is no whole number from LEAST up.
need() {
  [[ "$2" =~ ^(0|[1-9][0-9]{0,8})$ && "$2" -ge "$3" ]] && return
  echo "one_gpu: $1=$2 is not a number from $3 up" >&2
  exit 2
}
need PER_TYPE "$per_type" 1
need EPISODES "$episodes" 1
need JUDGE_DEMOS "$judge_demos" 0
judge="${JUDGE:-yes}"
[[ "$judge" =~ ^(yes|no)$ ]] || { echo "one_gpu: JUDGE=$judge is neither yes nor no" >&2; exit 2; }

plan="$("${webrl[@]}" run "$config" "${settings[@]+"${settings[@]}"}" --dry-run)"
run="$(sed -n '1s/^# plan of //p' <<<"$plan")"
[[ "$plan" != *$'\n  judge: environment\n'* ]] || judge=no
pack="${PACK:-$run.tar.gz}"
# models.actor names the base model of `webrl sft`; the loop starts from what comes out of that.
loop=()
for word in "${settings[@]+"${settings[@]}"}"; do [[ "$word" == models.actor=* ]] || loop+=("$word"); done
loop+=(models.actor="$run/sft")
# The paper's replay buffer begins with the supervised start's demonstrations, where this start has some.
if [[ " ${settings[*]-}" != *" replay.demos="* ]] && [[ -d "$run/demos" || ! -f "$run/sft/config.json" ]]; then
  loop+=(replay.demos="[\"$run/demos\"]")
fi
practice="$run/judge"
judged=("$practice/phase_00/trajectories.jsonl")
[[ $judge_demos == 0 ]] || judged+=("$practice/demos")
if [[ "$judge" != no ]]; then
  loop+=(models.orm="$run/orm")
fi

say() { printf '\n== %s\n' "$*"; }

# Runs a command, for as long as is left; gives 124 when the time is over.
within() {
  if [[ $dry == yes ]]; then printf '%q ' "$@"; echo; return; fi
  if [[ $minutes == 0 ]]; then "$@"; return; fi
  local left=$((10#$minutes * 60 - SECONDS))
  [[ $left -gt 0 ]] || return 124
  # Jobs in the background ignore SIGINT, and so would what they start.
  timeout --foreground --signal=INT --kill-after=120 "$left" env --default-signal=INT "$@"
}

evening() {
  if [[ -f "$run/sft/config.json" ]]; then
    say "1, 2 of 4: demonstrations and supervised start are there: $run/sft"
  else
    say "1 of 4: demonstrations, to $run/demos"
    within "${webrl[@]}" record-demos "$config" "${settings[@]+"${settings[@]}"}" --per-type "$per_type" || return
    say "2 of 4: supervised start, to $run/sft"
    within "${webrl[@]}" sft "$config" "${settings[@]+"${settings[@]}"}" || return
  fi
  if [[ "$judge" == no ]]; then
    say "3 of 4: no judge of its own"
  elif [[ -f "$run/orm/config.json" ]]; then
    say "3 of 4: the judge is there: $run/orm"
  else
    say "3 of 4: a judge, from episodes in $practice, to $run/orm"
    local stage few=(tasks.num_seed_tasks="$episodes" models.actor="$run/sft")
    if [[ $judge_demos != 0 ]]; then
      within "${webrl[@]}" record-demos "$config" "${settings[@]+"${settings[@]}"}" --per-type "$judge_demos" \
        --run "$practice" --seed 1000003 || return
    fi
    for stage in gen-tasks filter-tasks rollout; do
      within "${webrl[@]}" "$stage" "$config" "${settings[@]+"${settings[@]}"}" "${few[@]}" \
        --run "$practice" --seed 1000003 || return
    done
    within "${webrl[@]}" train-orm "$config" "${settings[@]+"${settings[@]}"}" \
      --data "${judged[@]}" --init "$run/sft" --out "$run/orm" || return
  fi
  say "4 of 4: the loop, in $run"
  within "${webrl[@]}" run "$config" "${loop[@]}" || return
}

code=0
evening || code=$?
case $code in
  0) [[ $dry == yes ]] || say "finished: $run" ;;
  124 | 130 | 137) say "stopped after $((SECONDS / 60)) minutes; the same command resumes" ;;
  *) say "failed; what is finished is kept, and the same command resumes" ;;
esac
if [[ "$pack" == no ]]; then
  :
elif [[ $dry == no && ! -f "$run/config.yaml" && ! -d "$run/sft" && ! -f "$run/demos/trajectories.jsonl" ]]; then
  say "nothing to pack yet"
else
  say "pack, to $pack"
  minutes=0
  # Left out: hidden files (locks, states of unfinished trainings), and weights from before the last two phases, which
  # nothing that is still to run reads.
  leave=(--exclude='.?*')
  for old in $(ls -d "$run"/phase_[0-9]* 2>/dev/null | sort -V | head -n -2); do
    leave+=(--exclude="$(basename "$run")/$(basename "$old")/*/model*.safetensors")
  done
  within tar -czf "$pack.part" "${leave[@]}" -C "$(dirname "$run")" "$(basename "$run")" || exit
  within mv "$pack.part" "$pack"
fi
[[ $code == 124 || $code == 137 ]] || exit $code
