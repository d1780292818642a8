import { renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { migrate } from '../../db/postgres/migrate'
import { finish, postgresBin, queryOf, startCluster, use, withFunctions } from './postgres'

/** A server of its own, which a copy that lacks the last commits can replace at the same address. */
export async function startFailover(settings: Readonly<Record<string, string>> = {}) {
  const server = await startCluster({ settings })
  await server.run('CREATE DATABASE turnpike')
  const url = server.url('turnpike')
  await use(url, (client) => migrate(queryOf(client), Date.now()))
  await withFunctions(url)
  const [data, copy] = ['data', 'copy'].map((name) => join(server.directory, name)) as [
    string,
    string,
  ]
  return {
    url,
    /** Ends the server at once, and starts it again with what it had written. */
    async crash() {
      await server.crash()
      await server.start()
    },
    /** Copies what is committed now, as an asynchronous standby has it. */
    async copy() {
      const host = ['-h', server.directory, '-p', String(server.port), '-U', 'postgres']
      const how = ['-D', copy, '--no-sync', '--checkpoint=fast', '--wal-method=fetch']
      await finish([join(postgresBin ?? '', 'pg_basebackup'), ...host, ...how])
    },
    /** Ends the server at once, and starts the copy in its place. */
    async failOver() {
      await server.crash()
      rmSync(data, { recursive: true })
      renameSync(copy, data)
      await server.start()
    },
    [Symbol.asyncDispose]: () => server.stop(),
  }
}
