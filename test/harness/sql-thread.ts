import { type MessagePort, workerData } from 'node:worker_threads'
import { Client, types } from 'pg'
import type { Answer, Question } from './sql'

/** The thread of `postgresSql`: one statement at a time, answered by the port and the flag. */

const { shared, port } = workerData as { shared: SharedArrayBuffer; port: MessagePort }
const flag = new Int32Array(shared)
const clients = new Map<string, Promise<Client>>()

// As SQLite has them: counts are numbers, flags are 0 and 1.
types.setTypeParser(types.builtins.INT8, Number)
types.setTypeParser(types.builtins.BOOL, (text) => (text === 't' ? 1 : 0))

async function connect(connectionString: string): Promise<Client> {
  const client = new Client({ connectionString })
  // Its database is dropped, or its server ends or is starting.
  const forget = () => void clients.delete(connectionString)
  client.on('error', forget)
  client.on('end', forget)
  try {
    await client.connect()
  } catch (error) {
    forget()
    throw error
  }
  return client
}

async function answer(request: Question): Promise<Answer> {
  if ('ended' in request) {
    const client = clients.get(request.ended)
    clients.delete(request.ended)
    await (await client)?.end()
    return { names: [], rows: [] }
  }
  const { url, text, values } = request
  const opened = clients.get(url) ?? connect(url)
  clients.set(url, opened)
  const client = await opened
  const { fields, rows } = await client.query<unknown[]>({
    text,
    values: values.map((value) => (typeof value === 'bigint' ? String(value) : value)),
    rowMode: 'array',
  })
  return { names: fields.map(({ name }) => name), rows }
}

port.on('message', async (request: Question) => {
  let result: Answer
  try {
    result = await answer(request)
  } catch (error) {
    const { message, code = '' } = error as Error & { code?: string }
    result = { error: message, code }
  }
  port.postMessage(result)
  Atomics.store(flag, 0, 1)
  Atomics.notify(flag, 0)
})
