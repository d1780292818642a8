import {
  closeSync,
  existsSync,
  fstatSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  unlinkSync,
} from 'node:fs'
import { join } from 'node:path'
import { syncDirectory, writeNew } from './durable'

/** The environment as a process has it. */
export type Env = Readonly<Record<string, string | undefined>>

/** The value of a name; undefined when it is not set or empty. */
export type Lookup = (name: string) => string | undefined

/**
 * Looks a name up in the environment, or in the file that `NAME_FILE` names, trimmed. Only
 * requested names are read, because other programs have variables that end in `_FILE`, too. The
 * lookup throws `EnvironmentError` when both are set or the file cannot be read. It never shows a
 * value.
 */
export function readEnv(env: Env): Lookup {
  return (name) => {
    const value = env[name]
    const file = env[`${name}_FILE`]
    if (!file) return value || undefined
    if (value)
      throw new EnvironmentError(`${name} and ${name}_FILE are both set: unset one of them`)
    try {
      return readFileSync(file, 'utf8').trim() || undefined
    } catch (error) {
      const code = codeOf(error)
      const fault = `the file that ${name}_FILE names cannot be read (${code})`
      throw new EnvironmentError(`${fault}: ${readAdvice(code)}`)
    }
  }
}

/** Names of what no upstream, page or place of alerts may get. */
export const ownSecrets: ReadonlySet<string> = new Set(
  (
    'RELAYER_KEYS DESK_KEY REFUND_KEY CHALLENGE_SECRETS RECEIPT_KEY RECEIVER_AUTHORIZER_KEY ' +
    'ADMIN_TOKEN DATABASE_URL'
  ).split(' '),
)

export type Secrets = {
  /** One or more secp256k1 keys of 32 bytes: each is a relayer on every network. */
  relayerKeys: readonly Uint8Array[]
  /** The stock desk's key; the first relayer key unless the environment has one. */
  deskKey: Uint8Array
  /** Whether the environment has the desk's key. */
  isDeskNamed: boolean
  /** The key of the account that refunds are paid from; never generated. */
  refundKey: Uint8Array | undefined
  /** HMAC keys of at least 32 bytes. The first signs challenges, all verify. */
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  /** Signs claims and refunds of payment channels; generated only for a network that has them. */
  receiverAuthorizerKey: Uint8Array | undefined
  adminToken: string
  /** Paths of the files that this call created. */
  generated: readonly string[]
}

type Options = {
  dataDir: string
  env: Env
  /** With a database server every gateway has the same secrets, so none is generated. */
  isShared?: boolean | undefined
  /** Whether a network has payment channels. */
  hasChannels?: boolean | undefined
  /** Random bytes of the given length; the system's by default. */
  random?: (length: number) => Uint8Array
}

type State = Required<Pick<Options, 'dataDir' | 'random'>> & { generated: string[] }

/** Order of the secp256k1 group: a private key is below it. SEC 2, section 2.4.1. */
const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n

/**
 * The secrets of the environment. Missing ones come from the data directory, where the first start
 * generates them (file mode 0600). Throws `EnvironmentError` with all faults and without any value.
 * Generates nothing while there is a fault.
 */
export function loadSecrets(options: Options): Secrets {
  const { dataDir, env, isShared, hasChannels, random = randomBytes } = options
  const lookup = readEnv(env)
  const state: State = { dataDir, random, generated: [] }
  const errors: string[] = []
  const relayer = attempt(errors, () => keysOf(lookup, 'RELAYER_KEYS'))
  const desk = attempt(errors, () => keysOf(lookup, 'DESK_KEY', 1)?.[0])
  const refund = attempt(errors, () => findRefundKey(env, [...(relayer ?? []), desk]))
  const authorizer = attempt(errors, () =>
    authorizerKeyOf(lookup, [...(relayer ?? []), desk, refund]),
  )
  const challenge = attempt(errors, () => challengeSecretsOf(lookup))
  const receipt = attempt(errors, () => keysOf(lookup, 'RECEIPT_KEY', 1)?.[0])
  const admin = attempt(errors, () => adminTokenOf(lookup))
  throwAll(errors)

  const stored = (file: string, name: string) =>
    attempt(errors, () => {
      const path = join(dataDir, file)
      if (isShared) throw new EnvironmentError(unshared(name, path))
      return storedKey(state, path)
    }) ?? new Uint8Array()
  const storedAuthorizer = () => {
    // Channels that are still open need it after the last network has lost its table.
    const isThere = existsSync(join(dataDir, authorizerFile))
    return hasChannels || isThere ? stored(authorizerFile, 'RECEIVER_AUTHORIZER_KEY') : undefined
  }
  const relayerKeys = relayer ?? [stored('relayer.key', 'RELAYER_KEYS')]
  const secrets: Secrets = {
    relayerKeys,
    deskKey: desk ?? relayerKeys[0] ?? new Uint8Array(),
    isDeskNamed: desk !== undefined,
    refundKey: attempt(errors, () => findRefundKey(env, relayerKeys)),
    challengeSecrets: challenge ?? [stored('challenge.secret', 'CHALLENGE_SECRETS')],
    receiptKey: receipt ?? stored('receipt.key', 'RECEIPT_KEY'),
    receiverAuthorizerKey: authorizer
      ? attempt(errors, () => authorizerKeyOf(lookup, relayerKeys))
      : storedAuthorizer(),
    adminToken: admin ?? hexOf(stored('admin.token', 'ADMIN_TOKEN')),
    generated: state.generated,
  }
  throwAll(errors)
  return secrets
}

const authorizerFile = 'receiver-authorizer.key'

/** URL of the database server; undefined: the database is a file. Throws `EnvironmentError`. */
export function databaseUrlOf(env: Env): string | undefined {
  return readEnv(env)('DATABASE_URL')
}

/**
 * The relayer keys that `loadSecrets` would return, without generating any: none before the first
 * start. Throws `EnvironmentError`.
 */
export function findRelayerKeys({ dataDir, env }: Options): readonly Uint8Array[] {
  const keys = keysOf(readEnv(env), 'RELAYER_KEYS')
  if (keys) return keys
  if (databaseUrlOf(env) !== undefined) return []
  const key = readStored(join(dataDir, 'relayer.key'))
  return key ? [key] : []
}

/**
 * Keys of the service's accounts: the relayers' keys, the desk's if it is another one, that of refunds
 * and that of channels.
 */
export function ownKeys(
  secrets: Partial<Pick<Secrets, 'deskKey' | 'refundKey' | 'receiverAuthorizerKey'>> &
    Pick<Secrets, 'relayerKeys'>,
): readonly Uint8Array[] {
  const { relayerKeys, deskKey, refundKey, receiverAuthorizerKey } = secrets
  const others = [deskKey, refundKey, receiverAuthorizerKey].filter((key) => key !== undefined)
  return [...relayerKeys, ...others.filter((key) => !isAmong(relayerKeys, key))]
}

/** The same without generating any. Throws `EnvironmentError`. */
export function findOwnKeys(options: Options): readonly Uint8Array[] {
  const relayerKeys = findRelayerKeys(options)
  const [deskKey] = keysOf(readEnv(options.env), 'DESK_KEY', 1) ?? []
  const refundKey = findRefundKey(options.env, [...relayerKeys, deskKey])
  const receiverAuthorizerKey = findAuthorizerKey(options, [...relayerKeys, deskKey, refundKey])
  return ownKeys({ relayerKeys, ...(deskKey && { deskKey }), refundKey, receiverAuthorizerKey })
}

/**
 * The key of channels, without generating it. `others`: the keys that it must differ from. Throws
 * `EnvironmentError`.
 */
export function findAuthorizerKey(
  { dataDir, env }: Options,
  others: readonly (Uint8Array | undefined)[] = [],
): Uint8Array | undefined {
  const key = authorizerKeyOf(readEnv(env), others)
  if (key !== undefined || databaseUrlOf(env) !== undefined) return key
  return readStored(join(dataDir, authorizerFile))
}

/** Whether the account of refunds is named. Reads no file. */
export function hasRefundKey(env: Env): boolean {
  return Boolean(env.REFUND_KEY || env.REFUND_KEY_FILE)
}

/**
 * The key of the account of refunds. `others`: the keys that it must differ from, because a refund
 * must not spend their money. Throws `EnvironmentError`.
 */
export function findRefundKey(
  env: Env,
  others: readonly (Uint8Array | undefined)[] = [],
): Uint8Array | undefined {
  const [key] = keysOf(readEnv(env), 'REFUND_KEY', 1) ?? []
  if (key === undefined || !isAmong(others, key)) return key
  throw new EnvironmentError(
    'REFUND_KEY is a key of RELAYER_KEYS or DESK_KEY: refunds need an account of their own ' +
      '(openssl rand -hex 32)',
  )
}

/** The key of claims and refunds of channels: no key of an account that sends or holds money. */
function authorizerKeyOf(
  lookup: Lookup,
  others: readonly (Uint8Array | undefined)[],
): Uint8Array | undefined {
  const [key] = keysOf(lookup, 'RECEIVER_AUTHORIZER_KEY', 1) ?? []
  if (key === undefined || !isAmong(others, key)) return key
  throw new EnvironmentError(
    'RECEIVER_AUTHORIZER_KEY is a key of RELAYER_KEYS, DESK_KEY or REFUND_KEY: channels need a key ' +
      'of their own (openssl rand -hex 32)',
  )
}

function isAmong(keys: readonly (Uint8Array | undefined)[], key: Uint8Array): boolean {
  return keys.some((each) => each !== undefined && hexOf(each) === hexOf(key))
}

function attempt<T>(errors: string[], run: () => T): T | undefined {
  try {
    return run()
  } catch (error) {
    if (!(error instanceof EnvironmentError)) throw error
    errors.push(error.message)
    return undefined
  }
}

function throwAll(errors: readonly string[]): void {
  if (errors.length > 0) throw new EnvironmentError(errors.join('\n'))
}

function keysOf(lookup: Lookup, name: string, max = 64): Uint8Array[] | undefined {
  const parts = lookup(name)?.split(',')
  if (!parts) return undefined
  if (parts.length > max)
    throw new EnvironmentError(
      `${name} takes ${max} key${max > 1 ? 's' : ''}: remove ${parts.length - max}`,
    )
  const keys = parts.map((part, i) => {
    const key = keyFrom(part.trim())
    if (key) return key
    const which = max > 1 ? `${name}, key ${i + 1},` : name
    throw new EnvironmentError(
      `${which} is not a private key: write 64 hex digits, below the group order (openssl rand -hex 32)`,
    )
  })
  if (new Set(keys.map(hexOf)).size < keys.length)
    throw new EnvironmentError(`${name} names one key twice: remove one of them`)
  return keys
}

function challengeSecretsOf(lookup: Lookup): Uint8Array[] | undefined {
  return lookup('CHALLENGE_SECRETS')
    ?.split(',')
    .map((part, i) => {
      const text = part.trim()
      const isHex = /^(0x)?([0-9a-fA-F]{2}){32,}$/.test(text)
      const bytes = isHex ? bytesOf(text.replace(/^0x/, '')) : new TextEncoder().encode(text)
      if (bytes.length >= 32) return bytes
      const which = `CHALLENGE_SECRETS, secret ${i + 1},`
      throw new EnvironmentError(`${which} is too short: 32 bytes at least (openssl rand -hex 32)`)
    })
}

function adminTokenOf(lookup: Lookup): string | undefined {
  const token = lookup('ADMIN_TOKEN')
  if (token === undefined || /^[\x21-\x7e]{16,}$/.test(token)) return token
  throw new EnvironmentError('ADMIN_TOKEN must be 16 or more visible ASCII characters, no blanks')
}

function keyFrom(text: string): Uint8Array | undefined {
  const hex = /^(?:0x)?([0-9a-fA-F]{64})$/.exec(text)?.[1]
  if (hex === undefined) return undefined
  const scalar = BigInt(`0x${hex}`)
  return scalar > 0n && scalar < order ? bytesOf(hex) : undefined
}

/** A secret of 32 bytes in the data directory, generated when it is not there. */
function storedKey(state: State, path: string): Uint8Array {
  const found = readStored(path)
  if (found) return found
  let key: Uint8Array | undefined
  // A random text is a valid scalar except with probability 2^-128.
  while (!key) key = keyFrom(hexOf(state.random(32)))
  if (create(state, path, `${hexOf(key)}\n`)) {
    state.generated.push(path)
    return key
  }
  // A concurrent start was faster: use its secret.
  const winner = readStored(path)
  if (winner) return winner
  throw new EnvironmentError(`${path} vanished while it was read: start again`)
}

/** Why a secret must be given, and how: a service that had a file before keeps its secrets. */
function unshared(name: string, path: string): string {
  const remedy = existsSync(path)
    ? `set ${name}_FILE=${path}, which this service has used until now`
    : `set ${name} or ${name}_FILE (openssl rand -hex 32)`
  return `${name} is not set. With DATABASE_URL every gateway has the same, and none is generated: ${remedy}`
}

function readStored(path: string): Uint8Array | undefined {
  const text = readPrivate(path, (code) => `: ${readAdvice(code)}`)
  const key = text === undefined ? undefined : keyFrom(text.trim())
  if (key !== undefined || text === undefined) return key
  throw new EnvironmentError(
    `${path} does not contain a secret of 64 hex digits: restore it from a backup`,
  )
}

/**
 * The text of a file that only its owner may read; undefined when there is none. Throws
 * `EnvironmentError` when it cannot be read, or when others may read it.
 */
export function readPrivate(path: string, adviceOf = (_code: string) => ''): string | undefined {
  let file: number
  try {
    file = openSync(path, 'r')
  } catch (error) {
    const code = codeOf(error)
    if (code === 'ENOENT') return undefined
    throw new EnvironmentError(`${path} cannot be read (${code})${adviceOf(code)}`)
  }
  try {
    const mode = fstatSync(file).mode & 0o777
    // Windows has no such bits.
    if (process.platform !== 'win32' && (mode & 0o077) !== 0) {
      const bits = mode.toString(8).padStart(4, '0')
      throw new EnvironmentError(`${path} is open to others (${bits}): run chmod 600 ${path}`)
    }
    return readFileSync(file, 'utf8')
  } finally {
    closeSync(file)
  }
}

/**
 * Writes a new file durably; false when the path exists. The bytes are complete before the name
 * exists, and link, unlike rename, fails when the name exists: of two starts one succeeds.
 */
function create({ dataDir, random }: State, path: string, text: string): boolean {
  try {
    mkdirSync(dataDir, { recursive: true, mode: 0o700 })
    const temporary = `${path}.${hexOf(random(8))}.tmp`
    writeNew(temporary, text)
    try {
      linkSync(temporary, path)
    } finally {
      unlinkSync(temporary)
    }
    syncDirectory(dataDir)
    return true
  } catch (error) {
    const code = codeOf(error)
    if (code === 'EEXIST') return false
    throw new EnvironmentError(`${path} cannot be written (${code}): ${writeAdvice(code)}`)
  }
}

function hexOf(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex')
}

function bytesOf(hex: string): Uint8Array {
  return new Uint8Array(Buffer.from(hex, 'hex'))
}

/**
 * The system's error code, such as ENOENT. Its message would show the path, an environment value.
 */
export function codeOf(error: unknown): string {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  return typeof code === 'string' ? code : 'unknown error'
}

function readAdvice(code: string): string {
  if (code === 'ENOENT') return 'name a file that exists'
  return 'make it a file that the user of turnpike can read'
}

function writeAdvice(code: string): string {
  if (code === 'ENOSPC' || code === 'EDQUOT') return 'the disk is full, free some space'
  if (code === 'EACCES' || code === 'EPERM')
    return 'give the directory to the user of turnpike (chown), or name another by --data'
  return 'name another directory by --data'
}

/** The environment, or a secret in the data directory, cannot be used. It contains no values. */
export class EnvironmentError extends Error {
  override readonly name = 'EnvironmentError'
}

function randomBytes(length: number): Uint8Array {
  return crypto.getRandomValues(new Uint8Array(length))
}
