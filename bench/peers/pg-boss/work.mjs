// pg-boss, as its documentation has it. Called by `peer`; the packages are below $MODULES.
import { createRequire } from 'node:module'

const require = createRequire(process.env.MODULES)
const { PgBoss } = require('pg-boss')
const { Pool } = require('undici')

const queue = 'wake'
const configs = {
  fast: { batchSize: 10000, burstWhenBatchFull: true, localConcurrency: 2, pollingIntervalSeconds: 0.5 },
  default: {}
}
const sources = {
  fast: 'pgboss.io/api/workers: batches, the next at once after a full one, two workers, the shortest interval it takes; NOTIFY is not for jobs of the future',
  default: 'only the connection and the handler: one job every 2 s'
}
const connections = 100

function sender(sink) {
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

async function start(uri) {
  const boss = new PgBoss(uri)
  boss.on('error', (error) => console.error(error.message))
  return boss.start()
}

async function work(uri, config, sink) {
  const send = sink === '-' ? async () => {} : sender(sink)
  const boss = await start(uri)
  let worked = 0
  // A handler that throws fails its whole batch: the jobs that failed are told one by one.
  await boss.work(queue, configs[config], async (jobs) => {
    worked += jobs.length
    const outcomes = await Promise.allSettled(jobs.map((job) => send(job.data)))
    const failed = jobs.filter((_, n) => outcomes[n].status === 'rejected')
    if (failed.length > 0) await boss.fail(queue, failed)
  })
  process.once('SIGTERM', async () => {
    await boss.stop({ timeout: 7000 }) // what is not done by then is to be tried again
    console.log(`worked ${worked}`)
    process.exit(0)
  })
  console.log('ready')
}

const [word, ...rest] = process.argv.slice(2)
switch (word) {
  case 'version': {
    const { version } = require('./node_modules/pg-boss/package.json')
    console.log(`pg-boss ${version}, Node ${process.versions.node}`)
    break
  }
  case 'config':
    console.log(`${JSON.stringify(configs[rest[0]])} (${sources[rest[0]]})`)
    break
  case 'migrate': {
    const boss = await start(rest[0])
    await boss.createQueue(queue)
    await boss.stop()
    break
  }
  case 'work':
    await work(...rest)
}
