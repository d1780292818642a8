import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Client } from 'pg'
import { freePort } from '../soak/program'
import { finish, postgresBin, use } from './postgres'
import { until } from './world'

/** A primary and its synchronous standby, started by the files of deploy/cluster.yaml. */

const deploy = join(import.meta.dir, '..', '..', 'deploy')
const bin = postgresBin ?? ''
const isRoot = process.getuid?.() === 0
const asOwner = isRoot ? ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups'] : []
const passwords = { REPLICATION_PASSWORD: 'of-the-standby', TURNPIKE_PASSWORD: 'of-turnpike' }

type Server = ReturnType<typeof Bun.spawn>

/** As the image of PostgreSQL starts them, with a port of each in place of a host. */
export async function startReplicated() {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-replicated-'))
  const [primaryPort, standbyPort] = [await freePort(), await freePort()]
  const own = (path: string) => {
    if (isRoot) chownSync(path, idOf('-u'), idOf('-g'))
    chmodSync(path, 0o700)
  }
  own(directory)
  const dataOf = (name: string) => join(directory, name)
  const envOf = (name: string, port: number) => ({
    ...{ PATH: `${bin}:${process.env.PATH}`, ...passwords, POSTGRES_USER: 'postgres' },
    ...{ PGDATA: dataOf(name), PGHOST: directory, PGPORT: String(port) },
  })
  const spawn = (command: readonly string[], env: Record<string, string>): Server =>
    Bun.spawn([...asOwner, ...command], {
      ...{ cwd: directory, env, stdin: 'ignore', stdout: 'ignore' },
      stderr: Bun.file(join(directory, `log-${env.PGPORT}`)),
    })
  const { services } = Bun.YAML.parse(readFileSync(join(deploy, 'cluster.yaml'), 'utf8')) as {
    services: { primary: { command: string[] } }
  }
  await finish([join(bin, 'initdb'), '-D', dataOf('primary'), '-U', 'postgres', '--no-sync'])
  writeFileSync(
    join(dataOf('primary'), 'postgresql.conf'),
    `listen_addresses = '127.0.0.1'\nunix_socket_directories = '${directory}'\n`,
  )
  writeFileSync(
    join(dataOf('primary'), 'pg_hba.conf'),
    'local all all trust\nhost all all all scram-sha-256\n',
  )
  // The image runs the scripts on a server without clients, which waits for no standby.
  const first = spawn(['postgres'], envOf('primary', primaryPort))
  await answers(directory, primaryPort)
  runInit(directory, envOf('primary', primaryPort))
  first.kill('SIGINT')
  await first.exited
  const primary = spawn(services.primary.command, envOf('primary', primaryPort))
  await answers(directory, primaryPort)
  const script = join(directory, 'standby.sh')
  const text = readFileSync(join(deploy, 'cluster-standby.sh'), 'utf8')
  writeFileSync(script, text.replace('host=primary', `host=127.0.0.1 port=${primaryPort}`))
  mkdirSync(dataOf('standby'))
  own(dataOf('standby'))
  const standby = spawn(['bash', script], envOf('standby', standbyPort))
  await answers(directory, standbyPort)
  await until('the standby is synchronous', async () => {
    const rows = await query(directory, primaryPort, 'SELECT sync_state FROM pg_stat_replication')
    return rows.some(({ sync_state }) => sync_state === 'sync')
  })
  return controls({ directory, primary, standby, primaryPort, standbyPort })
}

type Pair = {
  directory: string
  primary: Server
  standby: Server
  primaryPort: number
  standbyPort: number
}

/** What a test does with the two servers. */
function controls({ directory, primary, standby, primaryPort, standbyPort }: Pair) {
  const sql = (port: number, statement: string) => query(directory, port, statement)
  /** Of the process that takes what the primary writes, while it is paused. */
  let paused: number | undefined
  return {
    url: `postgres://turnpike:${passwords.TURNPIKE_PASSWORD}@127.0.0.1:${primaryPort},127.0.0.1:${standbyPort}/turnpike?sslmode=disable`,
    /** Ends the primary at once, and makes the standby the primary. */
    async failOver() {
      primary.kill('SIGQUIT')
      await primary.exited
      if (paused !== undefined) process.kill(paused, 'SIGCONT')
      await sql(standbyPort, 'SELECT pg_promote()')
    },
    /** The standby takes nothing more, until it is to be the primary. */
    async pauseStandby() {
      const [receiver] = await sql(standbyPort, 'SELECT pid FROM pg_stat_wal_receiver')
      paused = Number(receiver?.pid)
      process.kill(paused, 'SIGSTOP')
    },
    /** Whether a commit of a gateway waits for the standby. */
    async isWaiting() {
      const waiting = await sql(
        primaryPort,
        `SELECT 1 FROM pg_stat_activity
         WHERE wait_event = 'SyncRep' AND query LIKE '%commit_changes%'`,
      )
      return waiting.length > 0
    },
    /** Runs statements as turnpike at the primary. */
    atPrimary: <T>(work: (client: Client) => Promise<T>) =>
      use(
        `postgres://turnpike:${passwords.TURNPIKE_PASSWORD}@127.0.0.1:${primaryPort}/turnpike`,
        work,
      ),
    /** Runs a statement as the owner of the primary. */
    ofOwner: (statement: string) => sql(primaryPort, statement),
    /** Runs a statement at the standby, or at what it has become. */
    sql: (statement: string) => sql(standbyPort, statement),
    async stop() {
      for (const server of [primary, standby]) {
        server.kill('SIGQUIT')
        await server.exited
      }
      rmSync(directory, { recursive: true, force: true })
    },
  }
}

async function query(directory: string, port: number, statement: string) {
  const url = urlAt(directory, port, 'turnpike')
  return (await use(url, (client) => client.query(statement))).rows
}

function runInit(directory: string, env: Record<string, string>): void {
  const command = [...asOwner, 'bash', join(deploy, 'cluster-init.sh')]
  const { exitCode, stderr } = Bun.spawnSync(command, { cwd: directory, env })
  if (exitCode !== 0) throw new Error(stderr.toString())
}

function idOf(kind: '-u' | '-g'): number {
  return Number(Bun.spawnSync(['id', kind, 'postgres']).stdout.toString())
}

function urlAt(directory: string, port: number, database: string): string {
  return `postgres:///${database}?host=${encodeURIComponent(directory)}&port=${port}&user=postgres`
}

function answers(directory: string, port: number): Promise<void> {
  return until('the server answers', () =>
    use(urlAt(directory, port, 'postgres'), (client) => client.query('SELECT 1')).then(
      () => true,
      () => false,
    ),
  )
}
