import { afterAll, describe, expect, test } from 'bun:test'
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  EnvironmentError,
  findOwnKeys,
  findRelayerKeys,
  loadSecrets,
  ownKeys,
  readEnv,
} from '../../src/config/env'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-env-'))
afterAll(() => rmSync(directory, { recursive: true }))

describe('the environment and its secrets', () => {
  const fresh = () => join(mkdtempSync(join(directory, 'data-')), 'inner')
  const key = '11'.repeat(32)

  test('a name is read unchanged, or trimmed from its file', () => {
    const path = join(directory, 'token')
    writeFileSync(path, '  abc\n')
    expect(readEnv({ A: 'x' })('A')).toBe('x')
    expect(readEnv({ A: '' })('A')).toBeUndefined()
    expect(readEnv({ A_FILE: path })('A')).toBe('abc')
    expect(() => readEnv({ A: 'x', A_FILE: path })('A')).toThrow(/both set/)
  })

  test('the first start generates missing secrets, the second reads them', () => {
    const dataDir = fresh()
    expect(findRelayerKeys({ dataDir, env: {} })).toEqual([])
    const first = loadSecrets({ dataDir, env: {} })
    expect(first.generated).toHaveLength(4)
    expect(readdirSync(dataDir).sort()).toEqual([
      'admin.token',
      'challenge.secret',
      'receipt.key',
      'relayer.key',
    ])
    for (const path of first.generated) expect(statSync(path).mode & 0o777).toBe(0o600)
    expect(statSync(dataDir).mode & 0o777).toBe(0o700)
    const second = loadSecrets({ dataDir, env: {} })
    expect(second).toEqual({ ...first, generated: [] })
    expect(first.deskKey).toEqual(first.relayerKeys[0] ?? new Uint8Array())
    expect(findRelayerKeys({ dataDir, env: {} })).toEqual(first.relayerKeys)
  })

  test('error: with a database server nothing is generated, and each missing secret is named', () => {
    const dataDir = fresh()
    const fault = (env: Record<string, string>) => {
      try {
        loadSecrets({ dataDir, env, isShared: true })
      } catch (error) {
        if (error instanceof EnvironmentError) return error.message.split('\n')
        throw error
      }
      return []
    }
    const lines = (name: string, remedy = `set ${name} or ${name}_FILE (openssl rand -hex 32)`) =>
      `${name} is not set. With DATABASE_URL every gateway has the same, and none is generated: ${remedy}`
    const names = ['RELAYER_KEYS', 'CHALLENGE_SECRETS', 'RECEIPT_KEY', 'ADMIN_TOKEN']
    expect(fault({})).toEqual(names.map((name) => lines(name)))
    expect(existsSync(dataDir)).toBe(false)
    const given = {
      RELAYER_KEYS: key,
      CHALLENGE_SECRETS: 'ab'.repeat(32),
      RECEIPT_KEY: key,
      ADMIN_TOKEN: 'an-admin-token-of-mine',
    }
    expect(fault(given)).toEqual([])
    expect(fault({ ...given, RECEIPT_KEY: '' })).toEqual([lines('RECEIPT_KEY')])
    // A service that had a file before is shown where its secrets are.
    const { generated } = loadSecrets({ dataDir, env: {} })
    const path = join(dataDir, 'receipt.key')
    expect(generated).toContain(path)
    expect(fault({ ...given, RECEIPT_KEY: '' })).toEqual([
      lines('RECEIPT_KEY', `set RECEIPT_KEY_FILE=${path}, which this service has used until now`),
    ])
    expect(fault({ ...given, RECEIPT_KEY: '', RECEIPT_KEY_FILE: path })).toEqual([])
    const env = { DATABASE_URL: 'postgres://u@h/d' }
    expect(findRelayerKeys({ dataDir, env })).toEqual([])
    expect(findRelayerKeys({ dataDir, env: {} })).toHaveLength(1)
  })

  test('secrets of the environment are not generated', () => {
    const dataDir = fresh()
    const secrets = loadSecrets({
      dataDir,
      env: {
        RELAYER_KEYS: `${key}, 0x${'22'.repeat(32)}`,
        DESK_KEY: '33'.repeat(32),
        CHALLENGE_SECRETS: `${'ab'.repeat(32)},${'x'.repeat(40)}`,
        ADMIN_TOKEN: 'an-admin-token-of-mine',
      },
    })
    expect(secrets.relayerKeys.map(({ length }) => length)).toEqual([32, 32])
    expect(secrets.deskKey[0]).toBe(0x33)
    expect(secrets.challengeSecrets.map(({ length }) => length)).toEqual([32, 40])
    expect(secrets.adminToken).toBe('an-admin-token-of-mine')
    expect(readdirSync(dataDir)).toEqual(['receipt.key'])
  })

  test('error: the account of refunds is never generated, and is no relayer of the data directory', () => {
    const dataDir = fresh()
    expect(loadSecrets({ dataDir, env: {} }).refundKey).toBeUndefined()
    expect(loadSecrets({ dataDir, env: { REFUND_KEY: key } }).refundKey?.[0]).toBe(0x11)
    const REFUND_KEY_FILE = join(dataDir, 'relayer.key')
    for (const find of [loadSecrets, findOwnKeys])
      expect(() => find({ dataDir, env: { REFUND_KEY_FILE } })).toThrow(/account of their own/)
    const own = findOwnKeys({ dataDir, env: { DESK_KEY: '33'.repeat(32), REFUND_KEY: key } })
    expect(own.slice(1).map(([first]) => first)).toEqual([0x33, 0x11])
  })

  test('the key of channels is generated where a network has them, and read from then on', () => {
    const dataDir = fresh()
    expect(loadSecrets({ dataDir, env: {} }).receiverAuthorizerKey).toBeUndefined()
    const path = join(dataDir, 'receiver-authorizer.key')
    const first = loadSecrets({ dataDir, env: {}, hasChannels: true })
    expect(first.generated).toEqual([path])
    // Channels that are open need it when the last network has lost its table.
    const second = loadSecrets({ dataDir, env: {} })
    expect(second.receiverAuthorizerKey).toEqual(first.receiverAuthorizerKey)
    expect(findOwnKeys({ dataDir, env: {} }).at(-1)).toEqual(first.receiverAuthorizerKey)
    const own = { RECEIVER_AUTHORIZER_KEY: key }
    expect(loadSecrets({ dataDir, env: own }).receiverAuthorizerKey?.[0]).toBe(0x11)
    expect(ownKeys(loadSecrets({ dataDir, env: own })).at(-1)?.[0]).toBe(0x11)
  })

  test('error: the key of channels is that of no other account, and named with a server', () => {
    const dataDir = fresh()
    loadSecrets({ dataDir, env: {} })
    const others = { RELAYER_KEYS: key, DESK_KEY: '33'.repeat(32), REFUND_KEY: '44'.repeat(32) }
    for (const value of Object.values(others))
      for (const find of [loadSecrets, findOwnKeys])
        expect(() => find({ dataDir, env: { ...others, RECEIVER_AUTHORIZER_KEY: value } })).toThrow(
          /^RECEIVER_AUTHORIZER_KEY is a key of .* a key of their own/s,
        )
    const ofFile = { RECEIVER_AUTHORIZER_KEY_FILE: join(dataDir, 'relayer.key') }
    expect(() => loadSecrets({ dataDir, env: ofFile, hasChannels: true })).toThrow(/of their own/)
    expect(readdirSync(dataDir)).not.toContain('receiver-authorizer.key')
    const shared = {
      ...{ RELAYER_KEYS: key, CHALLENGE_SECRETS: 'ab'.repeat(32), RECEIPT_KEY: key },
      ADMIN_TOKEN: 'an-admin-token-of-mine',
    }
    const load = (hasChannels: boolean, more = {}) =>
      loadSecrets({ dataDir, env: { ...shared, ...more }, isShared: true, hasChannels })
    expect(() => load(true)).toThrow(/^RECEIVER_AUTHORIZER_KEY is not set\. With DATABASE_URL/)
    expect(load(false).receiverAuthorizerKey).toBeUndefined()
    expect(load(true, { RECEIVER_AUTHORIZER_KEY: '55'.repeat(32) }).generated).toEqual([])
    // A service that had a file before keeps its key.
    const [path = ''] = loadSecrets({ dataDir, env: {}, hasChannels: true }).generated
    expect(() => load(false)).toThrow(`set RECEIVER_AUTHORIZER_KEY_FILE=${path}`)
  })

  test('of two concurrent starts one generates, and the other uses its secret', () => {
    const dataDir = fresh()
    let other: ReturnType<typeof loadSecrets> | undefined
    const first = loadSecrets({
      dataDir,
      env: { RELAYER_KEYS: key, RECEIPT_KEY: key, ADMIN_TOKEN: 'an-admin-token-of-mine' },
      // The other start runs between our check and our write.
      random: (length) => {
        other ??= loadSecrets({ dataDir, env: {} })
        return new Uint8Array(length).fill(7)
      },
    })
    expect(first.generated).toEqual([])
    expect(first.challengeSecrets).toEqual(other?.challengeSecrets ?? [])
    expect(readdirSync(dataDir).filter((name) => name.endsWith('.tmp'))).toEqual([])
  })

  test('error: a secret that others can read is refused', () => {
    const dataDir = fresh()
    const [path = ''] = loadSecrets({ dataDir, env: {} }).generated
    chmodSync(path, 0o640)
    expect(() => loadSecrets({ dataDir, env: {} })).toThrow(
      `${path} is open to others (0640): run chmod 600 ${path}`,
    )
  })

  test('error: a damaged secret is not replaced', () => {
    const dataDir = fresh()
    const [path = ''] = loadSecrets({ dataDir, env: {} }).generated
    writeFileSync(path, '')
    expect(() => loadSecrets({ dataDir, env: {} })).toThrow(/restore it from a backup/)
    expect(readFileSync(path, 'utf8')).toBe('')
  })

  test('error: bad keys are named together, never shown, and nothing is generated', () => {
    const dataDir = fresh()
    const order = 'fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141'
    const own = {
      RELAYER_KEYS: `${key},${order}`,
      DESK_KEY: '00'.repeat(32),
      RECEIPT_KEY: 'not-a-key',
      CHALLENGE_SECRETS: 'short-secret',
      ADMIN_TOKEN: 'short token',
    }
    let message = ''
    try {
      loadSecrets({ dataDir, env: own })
    } catch (error) {
      if (error instanceof EnvironmentError) message = error.message
    }
    expect(message.split('\n')).toHaveLength(5)
    expect(message).toMatch(/RELAYER_KEYS, key 2,/)
    for (const value of [key, order, '0000', 'not-a-key', 'short-secret', 'short token']) {
      expect(message).not.toContain(value)
    }
    expect(() => readdirSync(dataDir)).toThrow('ENOENT')
    expect(() => loadSecrets({ dataDir, env: { RELAYER_KEYS: `${key},${key}` } })).toThrow(/twice/)
  })

  describe('each message says what to do', () => {
    const order = 'fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141'
    const group = '64 hex digits, below the group order (openssl rand -hex 32)'
    const ownRefunds =
      'REFUND_KEY is a key of RELAYER_KEYS or DESK_KEY: refunds need an account of their own ' +
      '(openssl rand -hex 32)'
    const many = Array.from({ length: 66 }, (_, i) => `${i + 1}`.padStart(64, '0')).join()
    for (const [name, env, message] of [
      [
        'a key that is none',
        { RELAYER_KEYS: 'abc' },
        `RELAYER_KEYS, key 1, is not a private key: write ${group}`,
      ],
      [
        'a key beyond the group',
        { DESK_KEY: order },
        `DESK_KEY is not a private key: write ${group}`,
      ],
      [
        'one key twice',
        { RELAYER_KEYS: `${key},${key}` },
        'RELAYER_KEYS names one key twice: remove one of them',
      ],
      ['too many keys', { RELAYER_KEYS: many }, 'RELAYER_KEYS takes 64 keys: remove 2'],
      ['two desk keys', { DESK_KEY: `${key},${key}` }, 'DESK_KEY takes 1 key: remove 1'],
      [
        'a refund key that is none',
        { REFUND_KEY: order },
        `REFUND_KEY is not a private key: write ${group}`,
      ],
      ['refunds from a relayer', { RELAYER_KEYS: key, REFUND_KEY: key }, ownRefunds],
      ['refunds from the desk', { DESK_KEY: key, REFUND_KEY: `0x${key}` }, ownRefunds],
      [
        'a short secret',
        { CHALLENGE_SECRETS: 'abc' },
        'CHALLENGE_SECRETS, secret 1, is too short: 32 bytes at least (openssl rand -hex 32)',
      ],
      [
        'a weak token',
        { ADMIN_TOKEN: 'abc' },
        'ADMIN_TOKEN must be 16 or more visible ASCII characters, no blanks',
      ],
      [
        'a file that is missing',
        { RECEIPT_KEY_FILE: '/nowhere' },
        'the file that RECEIPT_KEY_FILE names cannot be read (ENOENT): name a file that exists',
      ],
      [
        'a file that is a directory',
        { RECEIPT_KEY_FILE: tmpdir() },
        'the file that RECEIPT_KEY_FILE names cannot be read (EISDIR): make it a file that the user of turnpike can read',
      ],
      [
        'a name set twice',
        { ADMIN_TOKEN: 'an-admin-token-of-mine', ADMIN_TOKEN_FILE: '/nowhere' },
        'ADMIN_TOKEN and ADMIN_TOKEN_FILE are both set: unset one of them',
      ],
    ] as const)
      test(`error: ${name}`, () => {
        const dataDir = fresh()
        expect(() => loadSecrets({ dataDir, env })).toThrow(new EnvironmentError(message))
      })

    test('error: a data directory that cannot be made', () => {
      const file = join(directory, 'a-file')
      writeFileSync(file, '')
      const dataDir = join(file, 'data')
      expect(() => loadSecrets({ dataDir, env: {} })).toThrow(
        `${join(dataDir, 'relayer.key')} cannot be read (ENOTDIR): make it a file that the user of turnpike can read`,
      )
      // No user may write here, root included.
      expect(() => loadSecrets({ dataDir: '/proc/turnpike', env: {} })).toThrow(
        '/proc/turnpike/relayer.key cannot be written (ENOENT): name another directory by --data',
      )
    })
  })
})
