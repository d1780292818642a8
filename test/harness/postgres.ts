import { chownSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import net from 'node:net'
import { cpus, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { Client } from 'pg'
import { installFunctions } from '../../db/postgres/functions'
import type { Query } from '../../db/postgres/Line'
import { migrate } from '../../db/postgres/migrate'

/** A PostgreSQL of this machine, for one test process. */
export type Cluster = {
  /** Directory of the Unix socket. */
  directory: string
  port: number
  /** URL of a database, by the Unix socket; by TCP when the cluster listens there. */
  url(database?: string): string
  /** Runs one statement in the database `postgres`, or in the one that is named. */
  run(statement: string, database?: string): Promise<readonly Record<string, unknown>[]>
  /** Ends all server processes at once, as a crash does. The data stays. */
  crash(): Promise<void>
  /** Starts the server again after `crash`. */
  start(): Promise<void>
  /** Ends the server and removes the data. */
  stop(): Promise<void>
}

/** Changes of the configuration, such as `max_connections`. */
export type ClusterOptions = {
  tcp?: boolean
  settings?: Readonly<Record<string, string>>
  /** Even when this process is bound to one. */
  onAllCores?: boolean
  /** URL of a server by TCP, whose standby it is; it has no data of its own. */
  standbyOf?: string
  /** Of TCP; a free one without it. */
  port?: number
}

const debian = '/usr/lib/postgresql'

/**
 * Directory of the server's programs: the one that POSTGRES names (none if it is empty), the newest
 * of Debian, or the one on the PATH.
 */
export const postgresBin = findBin()
export const hasPostgres = postgresBin !== undefined

function findBin(): string | undefined {
  const named = process.env.POSTGRES
  if (named !== undefined) return named || undefined
  const versions = existsSync(debian) ? readdirSync(debian).map(Number) : []
  const newest = versions.sort((left, right) => right - left).map((each) => `${debian}/${each}/bin`)
  const onPath = Bun.which('initdb')
  return [...newest, ...(onPath ? [dirname(onPath)] : [])].find((path) =>
    existsSync(join(path, 'initdb')),
  )
}

/**
 * The shell replaces itself by the server, so that the pid is the server's. A process that is not
 * its child reads our end of a pipe. When the pipe closes, which happens at `stop()` and at the end
 * of this process, even by SIGKILL, it ends the server (SIGQUIT is pg_ctl's "immediate") and removes
 * the directory `$0`. A line through the pipe ends it after the server ended.
 */
const guard = `exec 3<&0
((read -r _ <&3 || {
  kill -QUIT $$
  while kill -0 $$; do sleep 0.05; done
  rm -rf "$0"
}) </dev/null >/dev/null 2>&1 &)
exec "$@" 3<&- </dev/null`

/**
 * The server refuses to run as root. `setpriv` replaces itself by the program too, so the pid stays
 * the same.
 */
const asRoot = process.getuid?.() === 0
const unprivileged = asRoot
  ? ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups']
  : []

const settings = {
  fsync: 'off',
  synchronous_commit: 'on',
  full_page_writes: 'off',
  max_connections: '200',
  shared_buffers: '64MB',
  // Containers have little shared memory, where TMPDIR may be too.
  min_wal_size: '32MB',
  max_wal_size: '64MB',
  autovacuum: 'off',
  listen_addresses: '',
}

/** Makes a cluster in a temporary directory and starts it. Throws what the server said. */
export async function startCluster(options: ClusterOptions = {}): Promise<Cluster> {
  if (postgresBin === undefined) throw new Error('there is no PostgreSQL')
  const bin = postgresBin
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-postgres-'))
  if (asRoot) chownSync(directory, await idOf('-u'), await idOf('-g'))
  const data = join(directory, 'data')
  await finish(
    options.standbyOf === undefined
      ? [
          ...[join(bin, 'initdb'), '-D', data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8'],
          ...['--locale=C.UTF-8', '--no-sync', '--wal-segsize=16'],
        ]
      : [
          ...[join(bin, 'pg_basebackup'), '-D', data, '-d', options.standbyOf],
          ...['--write-recovery-conf', '--checkpoint=fast', '--no-sync'],
        ],
  )
  const port = options.tcp ? (options.port ?? (await freePort())) : 5432
  const listen = options.tcp ? { listen_addresses: '127.0.0.1' } : {}
  const all = { ...settings, ...listen, ...options.settings }
  const taskset = options.onAllCores ? Bun.which('taskset') : null
  const command = [
    ...(taskset ? [taskset, '-c', `0-${cpus().length - 1}`] : []),
    ...[join(bin, 'postgres'), '-D', data, '-k', directory, '-p', String(port)],
    ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
  ]
  const url = options.tcp
    ? (database = 'postgres') => `postgres://postgres@127.0.0.1:${port}/${database}`
    : urlAt(directory)
  let server = await launch({ directory, command, url: url() })
  return {
    directory,
    port,
    url,
    run: (statement, database) => runAt(url(database), statement),
    crash: () => server.crash(),
    async start() {
      server = await launch({ directory, command, url: url() })
    },
    stop: () => server.stop(),
  }
}

type Launch = { directory: string; command: readonly string[]; url: string }

/** Starts the server and waits until it answers. */
async function launch({ directory, command, url }: Launch) {
  const log = join(directory, 'log')
  const child = Bun.spawn(['sh', '-c', guard, directory, ...unprivileged, ...command], {
    cwd: directory,
    stdin: 'pipe',
    stdout: 'ignore',
    stderr: Bun.file(log),
    // A Ctrl-C in the terminal is for us: the watching process ends the server.
    detached: true,
  })
  // A test that does not stop it can end.
  child.unref()
  /** Ends the watching process, which must not act on a later process of that pid. */
  const release = async () => {
    try {
      child.stdin.write('\n')
      await child.stdin.end()
    } catch {
      // The pipe is closed already: the watching process has ended.
    }
  }
  const crash = async () => {
    // In this order: the end of the server closes the pipe, which would remove the data.
    await release()
    child.kill('SIGQUIT')
    await child.exited
  }
  const stop = async () => {
    if (child.exitCode === null) await crash()
    rmSync(directory, { recursive: true, force: true })
  }
  while (!(await answers(url))) {
    if (child.exitCode === null && child.signalCode === null) continue
    await release()
    const said = readFileSync(log, 'utf8').trim()
    rmSync(directory, { recursive: true, force: true })
    throw new Error(`PostgreSQL does not start: ${said}`)
  }
  return { crash, stop }
}

async function answers(url: string): Promise<boolean> {
  try {
    await runAt(url, 'SELECT 1')
    return true
  } catch {
    await Bun.sleep(10)
    return false
  }
}

async function runAt(url: string, statement: string): Promise<readonly Record<string, unknown>[]> {
  return (await use(url, (client) => client.query(statement))).rows
}

/** Runs a program as the unprivileged user; throws its output when it fails. */
export async function finish(command: readonly string[]): Promise<void> {
  const child = Bun.spawn([...unprivileged, ...command], {
    cwd: '/',
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ])
  if ((await child.exited) !== 0) throw new Error(`${command[0]} fails: ${err}${out}`)
}

async function idOf(kind: '-u' | '-g'): Promise<number> {
  return Number(await new Response(Bun.spawn(['id', kind, 'postgres']).stdout).text())
}

function freePort(): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  const server = net.createServer().once('error', reject)
  server.listen(0, '127.0.0.1', () => {
    const address = server.address()
    server.close(() => resolve(typeof address === 'object' && address ? address.port : 0))
  })
  return promise
}

let shared: Promise<Cluster> | undefined
let databases = 0

/** Names the directory of a cluster for all processes of a run; see `startForAll`. */
const clusterOfAll = 'TURNPIKE_TEST_CLUSTER'

/** The cluster of the run that started this process, or one of its own, which ends with it. */
export function sharedCluster(): Promise<Cluster> {
  const directory = process.env[clusterOfAll]
  shared ??= directory === undefined ? startCluster() : Promise.resolve(attach(directory))
  return shared
}

/** Starts a cluster for several processes, with the templates of their databases. */
export async function startForAll(): Promise<Cluster & { env: Record<string, string> }> {
  const settings = { max_connections: '600' }
  const cluster = await startCluster({ settings })
  shared = Promise.resolve(cluster)
  await createTemplates()
  return { ...cluster, env: { [clusterOfAll]: cluster.directory } }
}

function attach(directory: string): Cluster {
  const url = urlAt(directory)
  const refuse = async () => {
    throw new Error('other processes use this cluster: start your own')
  }
  return {
    ...{ directory, port: 5432, url, crash: refuse, start: refuse, stop: refuse },
    run: (statement, database) => runAt(url(database), statement),
  }
}

function urlAt(directory: string): Cluster['url'] {
  return (database = 'postgres') =>
    `postgres:///${database}?host=${encodeURIComponent(directory)}&user=postgres`
}

/** URL of a new database without tables, in the cluster of this process. */
export function emptyDatabase(): Promise<string> {
  return create('template1')
}

/** One has the whole schema and no rows, the other one has the functions of this program as well. */
const templates = { tables: 'turnpike_template', functions: 'turnpike_template_functions' }
let prepared: Promise<void> | undefined

/** URL of a new database with the whole schema and no rows, in the cluster of this process. */
export function freshDatabase(): Promise<string> {
  return createFrom('tables')
}

/** The same with the functions of this program. */
export function gatewayDatabase(): Promise<string> {
  return createFrom('functions')
}

async function createFrom(template: keyof typeof templates): Promise<string> {
  if (process.env[clusterOfAll] === undefined) prepared ??= createTemplates()
  await prepared
  return create(templates[template])
}

async function create(template: string): Promise<string> {
  const cluster = await sharedCluster()
  databases++
  const name = `turnpike_${process.pid}_${databases}`
  // A copy of the files takes a third of the time that the log of it takes.
  await cluster.run(`CREATE DATABASE ${name} TEMPLATE ${template} STRATEGY FILE_COPY`)
  return cluster.url(name)
}

let durable: Promise<Cluster> | undefined

/** URL of a new database without tables, on a server that the program itself accepts. */
export async function durableDatabase(): Promise<string> {
  durable ??= startCluster({ settings: { fsync: 'on', full_page_writes: 'on' } })
  const cluster = await durable
  databases++
  const name = `turnpike_${process.pid}_${databases}`
  await cluster.run(`CREATE DATABASE ${name}`)
  return cluster.url(name)
}

/** Removes a database, even one that has connections. */
export async function dropDatabase(url: string): Promise<void> {
  const { pathname } = new URL(url)
  const beside = url.replace(pathname, '/postgres')
  await runAt(beside, `DROP DATABASE IF EXISTS ${pathname.slice(1)} WITH (FORCE)`)
}

/** Nothing stays connected to them, because a template in use cannot be copied. */
async function createTemplates(): Promise<void> {
  const cluster = await sharedCluster()
  const { tables, functions } = templates
  await cluster.run(`CREATE DATABASE ${tables}`)
  await use(cluster.url(tables), (client) => migrate(queryOf(client), Date.now()))
  await cluster.run(`CREATE DATABASE ${functions} TEMPLATE ${tables} STRATEGY FILE_COPY`)
  await withFunctions(cluster.url(functions))
  await use(cluster.url(functions), (client) => client.query(arrivals))
}

/**
 * The order in which rows came, which SQLite has as `rowid`; see `translate`. The clock cannot tell it:
 * tests move it back.
 */
const arrivals = `CREATE SCHEMA tests;
  CREATE TABLE tests.arrivals (
    origin text, id text, seq bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (origin, id)
  );
  CREATE FUNCTION tests.arrive() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    INSERT INTO tests.arrivals (origin, id) VALUES (TG_TABLE_NAME, NEW.id) ON CONFLICT DO NOTHING;
    RETURN NULL;
  END
  $$;
  CREATE TRIGGER arrive AFTER INSERT ON payments FOR EACH ROW EXECUTE FUNCTION tests.arrive();
  CREATE TRIGGER arrive AFTER INSERT ON authorizations FOR EACH ROW EXECUTE FUNCTION tests.arrive();`

/** Installs the functions of this program in a database that has the tables. */
export async function withFunctions(url: string): Promise<void> {
  await use(url, (client) => installFunctions(queryOf(client)))
}

/** A client as the code uses a connection. */
export function queryOf(client: Client): Query {
  return async <Row>(text: string, values: readonly unknown[] = []) => {
    const { rows } = await client.query(text, [...values])
    return rows as Row[]
  }
}

/** Connects to a database, and disconnects afterwards. */
export async function use<T>(url: string, work: (client: Client) => Promise<T>): Promise<T> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}
