import { afterAll, describe, expect, test } from 'bun:test'
import {
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { EnvironmentError, findRelayerKeys, loadSecrets, readEnv } from '../src/config/env'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-env-'))
afterAll(() => rmSync(directory, { recursive: true }))

describe('the environment and its secrets', () => {
  const fresh = () => join(mkdtempSync(join(directory, 'data-')), 'inner')
  const key = '11'.repeat(32)

  test('behavior: a name is read unchanged, or trimmed from its file', () => {
    const path = join(directory, 'token')
    writeFileSync(path, '  abc\n')
    expect(readEnv({ A: 'x' })('A')).toBe('x')
    expect(readEnv({ A: '' })('A')).toBeUndefined()
    expect(readEnv({ A_FILE: path })('A')).toBe('abc')
    expect(() => readEnv({ A: 'x', A_FILE: path })('A')).toThrow(/both set/)
  })

  test('behavior: the first start generates missing secrets, the second reads them', () => {
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

  test('behavior: secrets of the environment are not generated', () => {
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

  test('behavior: of two concurrent starts one generates, and the other uses its secret', () => {
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
})
