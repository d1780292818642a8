import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { chmodSync, mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseGoneError, PostgresError } from '../../db/postgres/errors'
import { startErrorOf } from '../../db/postgres/reach'
import * as Url from '../../db/postgres/Url'
import {
  DataDirectoryError,
  databaseName,
  directoryWarningsOf,
  openDirectory,
} from '../../db/sqlite/directory'
import { createLedger } from '../../db/sqlite/ledger'
import { DatabaseFileError, open } from '../../db/sqlite/open'
import { startFault } from '../../src/cli/sell/serve'
import { createLog } from '../../src/log'
import { createSettlement } from '../../src/settlement/settlement'
import { remedyOfReason } from '../../src/settlement/state/availability'
import { configOf, small } from '../harness/config'
import { silent, temporary } from '../harness/settlement'

/** Why a start is refused: each message says what is wrong and what to do. */

const now = () => 1_700_000_000_000
const isRoot = process.geteuid?.() === 0
const nobody = 65_534
let directory: ReturnType<typeof temporary>

beforeEach(() => {
  directory = temporary()
})
afterEach(() => directory.remove())

/** Runs as a user that does not own the directory; without root the mode refuses the owner. */
function asOther<T>(path: string, run: () => T): T {
  if (!isRoot) chmodSync(path, 0o500)
  else process.seteuid?.(nobody)
  try {
    return run()
  } finally {
    if (isRoot) process.seteuid?.(0)
    else chmodSync(path, 0o700)
  }
}

describe('the data directory', () => {
  test('error: a data directory that this user cannot write is reported with the owner and the command', () => {
    const path = join(directory.path, 'data')
    mkdirSync(path, { mode: 0o700 })
    chmodSync(directory.path, 0o755)
    chmodSync(path, 0o755)
    const user = isRoot ? nobody : process.geteuid?.()
    const message = isRoot
      ? `the data directory ${path} belongs to user 0 and cannot be written by user ${user}, who ` +
        `runs turnpike (mode 0755): run chown -R ${user} ${path} as root, or name another with --data`
      : `the data directory ${path} cannot be written by user ${user}, who runs turnpike (mode ` +
        `0500): run chmod 700 ${path}, or name another with --data`
    expect(() => asOther(path, () => openDirectory(path))).toThrow(new DataDirectoryError(message))
    expect(() => asOther(path, () => open({ dataDir: path, now }))).toThrow(DataDirectoryError)
    expect(readdirSync(path)).toEqual([])
    const below = join(path, 'below')
    expect(() => asOther(path, () => openDirectory(below))).toThrow(
      `the data directory ${below} cannot be created (EACCES): create it for this user, or name ` +
        'another with --data',
    )
  })

  test('error: a file in place of the data directory is named', () => {
    const path = join(directory.path, 'data')
    writeFileSync(path, '')
    for (const each of [path, join(path, 'below')])
      expect(() => openDirectory(each)).toThrow(
        `the data directory ${each} is no directory: remove the file of that name, or name another ` +
          'with --data',
      )
  })

  test('root is warned of a directory of another user, everyone of one that all can write', () => {
    const path = join(directory.path, 'data')
    expect(openDirectory(path)).toEqual([])
    expect([statSync(path).mode & 0o777, readdirSync(path)]).toEqual([0o700, []])
    expect(directoryWarningsOf('data', { uid: 1000, mode: 0o40700 }, 0)).toEqual([
      'the data directory data belongs to user 1000 and this process runs as root: user 1000 will ' +
        'not be able to read its files. Run turnpike as user 1000, or chown -R 0 data',
    ])
    // A volume of a container belongs to root and is written by its group.
    expect(directoryWarningsOf('data', { uid: 0, mode: 0o42770 }, 1000)).toEqual([])
    chmodSync(path, 0o777)
    expect(openDirectory(path)).toEqual([
      `every user of this machine can replace files in the data directory ${path}, keys too: run ` +
        `chmod 700 ${path}`,
    ])
  })

  test('error: files of another user are named, and the directory of the database', () => {
    const { path } = directory
    open({ dataDir: path, now }).close()
    chmodSync(path, 0o777)
    const fault = () => open({ dataDir: path, now }).close()
    if (isRoot) {
      expect(() => asOther(path, fault)).toThrow(DatabaseFileError)
      expect(() => asOther(path, fault)).toThrow(
        'its directory and all files in it must belong to the user who runs turnpike, on a file ' +
          'system that is mounted writable',
      )
    }
    fault()
  })

  test('error: a second process reports which one has the directory', () => {
    const { path } = directory
    const first = open({ dataDir: path, now })
    try {
      expect(() => open({ dataDir: path, now })).toThrow(
        `${path} is in use by process ${process.pid}: stop it, or choose another --data`,
      )
    } finally {
      first.close()
    }
  })

  const canMount =
    process.platform === 'linux' &&
    Bun.spawnSync(['unshare', '-rm', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'], {
      stderr: 'ignore',
    }).success
  test.if(canMount)('error: a full disk is named, and the remedy', async () => {
    const { path } = directory
    const program = `
      import { open } from ${JSON.stringify(join(import.meta.dir, '../../db/sqlite/open.ts'))}
      try { open({ dataDir: '.', now: () => 1 }) } catch (error) { console.log(error.message) }`
    writeFileSync(join(path, 'open.ts'), program)
    mkdirSync(join(path, 'disk'))
    const script = `mount -t tmpfs -o size=128k tmpfs disk && cd disk && ${process.execPath} ../open.ts`
    const child = Bun.spawn(['unshare', '-rm', 'sh', '-c', script], { cwd: path })
    expect(await child.stdout.text()).toBe(
      `${databaseName} cannot be written (SQLITE_FULL): the disk is full, free space on it and start ` +
        'again\n',
    )
  })
})

describe('the address', () => {
  const at = (hostname: string, port: number) => ({ listen: { hostname, port } })
  const failed = (code: string) => Object.assign(new Error(code), { code, syscall: 'listen' })

  test('error: a port that is taken is named, and where to name another', async () => {
    const other = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Response() })
    const port = other.port ?? 0
    let fault: unknown
    try {
      Bun.serve({ hostname: '127.0.0.1', port, fetch: () => new Response() })
    } catch (error) {
      fault = error
    }
    await other.stop(true)
    expect(startFault(fault, at('127.0.0.1', port))).toBe(
      `127.0.0.1:${port} is in use by another program: stop that program, or name another port by ` +
        'listen under [service]',
    )
  })

  test('error: a port for root only, and an address of another machine, are named', () => {
    expect(startFault(failed('EACCES'), at('::', 443))).toBe(
      '[::]:443 cannot be opened by this user (EACCES), because ports below 1024 are for root: name ' +
        'a higher port by listen under [service], or give the program CAP_NET_BIND_SERVICE',
    )
    expect(startFault(failed('EADDRNOTAVAIL'), at('203.0.113.5', 4020))).toBe(
      '203.0.113.5:4020 is no address to listen on here (EADDRNOTAVAIL): name one of this machine, ' +
        'or 0.0.0.0 for all, by listen under [service]',
    )
    expect(startFault(new Error('any other: do this'), at('::', 1))).toBe('any other: do this')
  })

  test('error: a database server that is lost during the start is named', () => {
    const gone = new DatabaseGoneError('the connection has ended', { mayHaveRun: true })
    const target = Url.parse('postgres://seller:qzkxvw@10.0.0.5:5432/turnpike')
    const messageOf = (fault: unknown) => String(startErrorOf(fault, target))
    const server = 'DatabaseStartError: PostgreSQL at 10.0.0.5:5432/turnpike'
    for (const fault of [gone, new Error('the ledger cannot be read', { cause: gone })])
      expect(messageOf(fault)).toBe(
        `${server} was lost during the start: start again when it answers`,
      )
    const refused = (code: string) => new PostgresError({ code, message: 'qzkxvw' })
    expect(messageOf(refused('55P03'))).toBe(
      `${server} has a lock that turnpike waits for: end the session that has it (SELECT pid, state, ` +
        'query FROM pg_stat_activity, then pg_terminate_backend), and try again',
    )
    const standby = Object.assign(new Error('cannot execute INSERT'), { code: '25006' })
    const lost = new DatabaseGoneError(standby.message, { mayHaveRun: true, cause: standby })
    expect(messageOf(lost)).toBe(
      `${server} is a standby, or is read-only: name the primary in DATABASE_URL`,
    )
    expect(messageOf(refused('XX000'))).toBe(`${server} cannot be used: *** (XX000)`)
    expect(messageOf(new Error('any other'))).toBe('Error: any other')
  })
})

test('error: a node that does not answer is a warning, with what to do', async () => {
  const { path } = directory
  const db = open({ dataDir: path, now })
  const lines: string[] = []
  const settlement = await createSettlement({
    ledger: createLedger(db),
    meter: silent,
    networks: configOf(small).networks.map((each) => ({
      ...each,
      rpcUrls: ['http://127.0.0.1:1'],
    })),
    relayerKeys: [new Uint8Array(32).fill(1)],
    now,
    log: createLog({ write: (line) => void lines.push(line), now }),
  })
  try {
    await settlement.ready
    const [status] = settlement.status()
    const remedy = 'check that the node runs and that rpc_urls names it; add a second URL'
    expect(status).toMatchObject({ ready: false, remedy })
    const [told] = lines.filter((line) => line.includes('network-not-ready'))
    expect(JSON.parse(told ?? '')).toMatchObject({ level: 'warn', reason: status?.reason, remedy })
  } finally {
    await settlement.stop(0)
    db.close()
  }
})

test('each reason of a pause has a remedy', () => {
  for (const [reason, remedy] of [
    ['127.0.0.1:1 is not chain 8453', 'correct rpc_urls'],
    ['the clock of this machine is 90 s ahead of the newest block of eip155:8453', 'NTP'],
    ['the base fee is above the fee cap of eip155:8453', 'raise fee_cap_gwei'],
    ['the node refuses the fees of the relayer', 'raise fee_cap_gwei'],
    ['the node refuses the gas limit', 'another node'],
    ['a transaction stays out at the fee cap', 'raise fee_cap_gwei'],
    [`USDC is not at 0x${'1'.repeat(40)} on eip155:8453`, 'correct the address'],
    ['DOMAIN_SEPARATOR of USDC is not that of "A" "1"', 'correct eip712'],
    ['the database cannot be written (SQLITE_FULL)', 'free space'],
  ] as const)
    expect(remedyOfReason(reason)).toContain(remedy)
  expect(remedyOfReason('not checked yet')).toBeUndefined()
})
