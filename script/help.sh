# Sourced by the other scripts first: with --help they show the comment at their head, and end.
for word in "$@"; do
    if [[ $word == -h || $word == --help ]]; then
        awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "${BASH_SOURCE[1]}"
        exit 0
    fi
done
