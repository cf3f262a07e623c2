// Graphile Worker, as its documentation has it. Called by `peer`; the packages are below $MODULES.
import { createRequire } from 'node:module'

const require = createRequire(process.env.MODULES)
const { run, runMigrations, Logger, WorkerPreset } = require('graphile-worker')
const { Pool } = require('undici')

const configs = {
  fast: {
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    pollInterval: 10
  },
  default: {}
}
const sources = {
  fast: 'the values of worker.graphile.org/docs/performance, and a poll every 10 ms for jobs of the future: worker.graphile.org/docs/config',
  default: 'only the connection and the tasks: one job at a time, a poll every 2 s, no batches'
}

// It logs every job to stdout, which is for `ready` and `worked` here; and a benchmark of a terminal is no use to anybody.
const logger = new Logger(() => (level, message) => {
  if (level === 'error') console.error(message.split('\n')[0])
})
const preset = (connectionString, worker) => ({ extends: [WorkerPreset], worker: { connectionString, logger, ...worker } })

function sender(sink, connections) {
  const { origin, pathname, search } = new URL(sink)
  const pool = new Pool(origin, { connections, pipelining: 1 })
  return async (body) => {
    const headers = {
      'content-type': 'application/json',
      authorization: 'Bearer bench-wake-token-0123456789',
      'idempotency-key': body.delivery_id,
      'ce-id': body.delivery_id,
      'ce-time': body.scheduled_for
    }
    const answer = await pool.request({ method: 'POST', path: pathname + search, headers, body: JSON.stringify(body) })
    await answer.body.dump()
    if (answer.statusCode < 200 || answer.statusCode > 299) throw new Error(`the sink answered ${answer.statusCode}`)
  }
}

async function work(uri, config, sink) {
  const settings = configs[config]
  const send = sink === '-' ? async () => {} : sender(sink, settings.concurrentJobs ?? 1)
  let worked = 0
  const wake = (payload) => {
    worked += 1
    return send(payload)
  }
  const runner = await run({ preset: preset(uri, settings), taskList: { wake }, parsedCronItems: [], noHandleSignals: true })
  process.once('SIGTERM', async () => {
    await runner.stop() // runner.promise would come too early: some jobs are still to be given back or deleted
    console.log(`worked ${worked}`)
    process.exit(0)
  })
  console.log('ready')
}

const [word, ...rest] = process.argv.slice(2)
switch (word) {
  case 'version': {
    const { version } = require('./node_modules/graphile-worker/package.json')
    console.log(`graphile-worker ${version}, Node ${process.versions.node}`)
    break
  }
  case 'config':
    console.log(`${JSON.stringify(configs[rest[0]])} (${sources[rest[0]]})`)
    break
  case 'migrate':
    await runMigrations({ preset: preset(rest[0], {}) })
    break
  case 'work':
    await work(...rest)
}
