# For .venv/bin/berth beside `docker compose up`, in the folder of compose.yaml:
#
#     . deploy/compose/people.sh
#
# From then on this shell's commands ask that NATS, as the user who may only look, and have the configuration of its
# services. It writes people.password and services.yaml there, for you alone; git ignores both. Source it again after
# `docker compose down --volumes`, which makes new passwords, and when the configuration has changed.

if (
  umask 077
  rm -f people.password services.yaml
  docker compose exec -T console cat /run/berth/credentials/people >people.password &&
    docker compose exec -T console cat /run/berth/configuration/scheduler.yaml >services.yaml
) && BERTH_NATS_URL=$(docker compose port nats 4222); then
  export BERTH_NATS_URL="nats://$BERTH_NATS_URL" BERTH_NATS_DOMAIN=berth BERTH_CONFIG="$PWD/services.yaml"
  export BERTH_NATS_USER=people BERTH_NATS_PASSWORD_FILE="$PWD/people.password"
else
  echo "people.sh: want it sourced in the folder of compose.yaml, after docker compose up --wait" >&2
  unset BERTH_NATS_URL
  rm -f people.password services.yaml
  false
fi
