import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { readText, TooLongError } from '../net/read-text'
import * as Certificate from './Certificate'
import * as Jws from './Jws'
import * as SigningRequest from './SigningRequest'

/** Answers of the challenges in progress, by token. The HTTP port sends them. */
export type Challenges = Map<string, string>

type Challenge = { type?: string; token?: string; url?: string; error?: unknown }
type Authorization = {
  status?: string
  identifier?: { value?: string }
  challenges?: readonly Challenge[]
}
type Order = {
  status?: string
  authorizations?: readonly string[]
  finalize?: string
  certificate?: string
  error?: unknown
}

const pollMs = 250
const pollMaxMs = 5_000
/** Longest wait that the CA may require between two polls, ms. */
const askedMaxMs = 30_000
/** About two minutes. */
const pollsMax = 30

/**
 * Orders a certificate for these domains with a new key on P-256, and proves by HTTP that they are
 * ours. Throws `AcmeError`.
 */
export async function order(
  client: Client,
  domains: readonly string[],
  challenges: Challenges,
): Promise<Certificate.Certificate> {
  const identifiers = domains.map((value) => ({ type: 'dns', value }))
  const created = await client.post(client.newOrder, { identifiers })
  const { authorizations = [], finalize = '' } = created.body as Order
  for (const url of authorizations) await prove(client, url, challenges)
  const { privateKey } = generateKeyPairSync('ec', {
    namedCurve: 'P-256',
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
    publicKeyEncoding: { type: 'spki', format: 'pem' },
  })
  const request = SigningRequest.from(domains, createPrivateKey(privateKey))
  await client.post(finalize, { csr: request.toString('base64url') })
  const done = await poll<Order>(client, created.location, ['pending', 'ready', 'processing'])
  if (done.status !== 'valid' || done.certificate === undefined)
    throw new AcmeError(`the CA ended the order: ${reasonOf(done.error) ?? done.status}`)
  const { text } = await client.post(done.certificate)
  return accept(Certificate.serialize({ key: privateKey, chain: text }), domains)
}

/** Proves one domain by the challenge http-01. RFC 8555 section 8.3. */
async function prove(client: Client, url: string, challenges: Challenges): Promise<void> {
  const authorization = (await client.post(url)).body as Authorization
  const domain = authorization.identifier?.value ?? ''
  // The CA remembers a proof for some days.
  if (authorization.status === 'valid') return
  const challenge = authorization.challenges?.find(({ type }) => type === 'http-01')
  if (challenge?.token === undefined || challenge.url === undefined)
    throw new AcmeError(`the CA offers no HTTP challenge for ${domain}`)
  const { token } = challenge
  challenges.set(token, client.authorize(token))
  try {
    await client.post(challenge.url, {})
    const ended = await poll<Authorization>(client, url, ['pending', 'processing'])
    if (ended.status === 'valid') return
    const failed = ended.challenges?.find(({ error }) => error !== undefined)
    throw new AcmeError(
      `the CA did not reach this service as ${domain} on port 80: ` +
        `${reasonOf(failed?.error) ?? ended.status}. Point the DNS records of ${domain} here, and open port 80`,
    )
  } finally {
    challenges.delete(token)
  }
}

/** Reads a resource until its status is not one of these. */
async function poll<Resource extends { status?: string }>(
  client: Client,
  url: string,
  unfinished: readonly string[],
): Promise<Resource> {
  let waitMs = pollMs
  for (let count = 0; count < pollsMax; count++) {
    const answer: Answer = await client.post(url)
    const resource = answer.body as Resource
    if (!unfinished.includes(resource.status ?? '')) return resource
    await client.wait(Math.min(answer.retryAfterMs ?? waitMs, askedMaxMs))
    waitMs = Math.min(waitMs * 2, pollMaxMs)
  }
  throw new AcmeError('the CA did not finish in time')
}

function accept(text: string, domains: readonly string[]): Certificate.Certificate {
  try {
    const certificate = Certificate.parse(text)
    const absent = Certificate.missing(certificate, domains)
    if (absent.length === 0) return certificate
    throw new AcmeError(`the CA sent a certificate without ${absent.join(', ')}`)
  } catch (error) {
    if (!(error instanceof Certificate.CertificateError)) throw error
    throw new AcmeError(`the CA sent no usable certificate: ${error.message}`)
  }
}

/** The addresses of a CA. RFC 8555 section 7.1.1. */
type Directory = {
  newNonce: string
  newAccount: string
  newOrder: string
  meta?: { externalAccountRequired?: boolean }
}

type ClientOptions = {
  directoryUrl: string
  /** PEM of the authorities that the directory's own certificate may have; the system's by default. */
  ca?: string | undefined
  /** Private key of the account, on P-256. */
  key: KeyObject
  /** Ends the requests and waits in progress. */
  signal: AbortSignal
  /** Unix ms. */
  now: () => number
}

/** An answer of the CA. `body` is the text, or the members of JSON. */
type Answer = {
  body: Readonly<Record<string, unknown>>
  text: string
  /** URL of what was created; empty when there is none. */
  location: string
  retryAfterMs: number | undefined
}

type Client = {
  /** Registers the account, or finds it by its key. */
  register(contact: string | undefined): Promise<void>
  /** Sends a signed request; without a payload it reads the resource. Throws `AcmeError`. */
  post(url: string, payload?: object): Promise<Answer>
  /** `url` of a resource of the directory. */
  newOrder: string
  authorize(token: string): string
  wait(ms: number): Promise<void>
}

/** Why a certificate was not issued. The message is for operators and has no secret. */
export class AcmeError extends Error {
  override readonly name = 'AcmeError'
  /** `retryAfterMs`: how long the CA asks to wait. */
  constructor(
    message: string,
    readonly retryAfterMs?: number,
  ) {
    super(message)
  }
}

const requestMs = 30_000
/** Longest answer: chains of certificates have a few kilobytes. */
const answerMaxBytes = 1_048_576
/** RFC 8555 section 6.5: a CA may refuse a nonce at any time, and sends another one. */
const noncesMax = 8
const errors = 'urn:ietf:params:acme:error:'

/** Reads the directory of a CA. Throws `AcmeError`. */
export async function connect(options: ClientOptions): Promise<Client> {
  const { directoryUrl, key } = options
  const found = await send(options, directoryUrl, { method: 'GET' })
  const directory = (await toAnswer(found, options)).body as Partial<Directory>
  const { newNonce, newAccount, newOrder, meta } = directory
  if (newNonce === undefined || newAccount === undefined || newOrder === undefined)
    throw new AcmeError(`${hostOf(directoryUrl)} is no ACME directory: see ACME_DIRECTORY_URL`)
  if (meta?.externalAccountRequired === true)
    throw new AcmeError(
      `${hostOf(directoryUrl)} requires an external account, which turnpike cannot use: choose another ACME_DIRECTORY_URL`,
    )
  let account: string | undefined
  let nonce: string | undefined

  async function post(url: string, payload?: object): Promise<Answer> {
    for (let attempt = 1; ; attempt++) {
      const fresh = nonce ?? (await askNonce())
      const body = Jws.serialize({ key, url, nonce: fresh, account, payload })
      const response = await send(options, url, {
        method: 'POST',
        headers: { 'content-type': 'application/jose+json' },
        body,
      })
      nonce = nonceOf(response)
      try {
        return await toAnswer(response, options)
      } catch (error) {
        if (!(error instanceof NonceError) || attempt === noncesMax) throw error
      }
    }
  }

  async function askNonce(): Promise<string> {
    const response = await send(options, newNonce ?? '', { method: 'HEAD' })
    if (!response.ok) await toAnswer(response, options)
    return nonceOf(response) ?? ''
  }

  return {
    async register(contact) {
      const contacts = contact === undefined ? {} : { contact: [`mailto:${contact}`] }
      account = undefined
      const { location } = await post(newAccount, { termsOfServiceAgreed: true, ...contacts })
      account = location
    },
    post,
    newOrder,
    authorize: (token) => Jws.authorize(token, key),
    wait: (ms) => pause(ms, options.signal),
  }
}

/** A nonce that the CA does not accept. */
class NonceError extends AcmeError {}

async function send(
  { ca, signal }: ClientOptions,
  url: string,
  init: RequestInit,
): Promise<Response> {
  try {
    return await fetch(url, {
      ...init,
      redirect: 'error',
      signal: AbortSignal.any([signal, AbortSignal.timeout(requestMs)]),
      ...(ca === undefined ? {} : { tls: { ca } }),
    })
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    const why = typeof code === 'string' ? code : error instanceof Error ? error.name : 'unknown'
    throw new AcmeError(`the CA at ${hostOf(url)} cannot be reached (${why})`)
  }
}

/** The content of an answer. Throws `AcmeError` with the CA's reason for one that is a problem. */
async function toAnswer(response: Response, { now }: ClientOptions): Promise<Answer> {
  const text = await readText(response, answerMaxBytes).catch((error) => {
    if (!(error instanceof TooLongError)) throw error
    throw new AcmeError(`the CA at ${hostOf(response.url)} sent ${error.message}`)
  })
  const body = membersOf(text)
  const retryAfterMs = retryAfter(response.headers.get('retry-after'), now())
  if (response.ok)
    return { body, text, location: response.headers.get('location') ?? '', retryAfterMs }
  const reason = reasonOf(body) ?? `it answered ${response.status}`
  const message = `the CA at ${hostOf(response.url)} refused: ${reason}`
  if (body.type === `${errors}badNonce`) throw new NonceError(message)
  throw new AcmeError(message, retryAfterMs)
}

/** `type: detail` of a problem document, such as `rateLimited: too many requests`. */
function reasonOf(problem: unknown): string | undefined {
  if (typeof problem !== 'object' || problem === null) return undefined
  const { type, detail } = problem as { type?: unknown; detail?: unknown }
  const name = typeof type === 'string' ? type.replace(errors, '') : undefined
  const parts = [name, typeof detail === 'string' ? detail : undefined]
  return parts.filter((part) => part !== undefined).join(': ') || undefined
}

function membersOf(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? { ...value } : {}
  } catch {
    return {}
  }
}

function nonceOf({ headers }: Response): string | undefined {
  return headers.get('replay-nonce') ?? undefined
}

/** Seconds or a date. RFC 9110 section 10.2.3. */
function retryAfter(value: string | null, now: number): number | undefined {
  if (value === null) return undefined
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - now
  return Number.isFinite(ms) ? Math.max(0, ms) : undefined
}

function hostOf(url: string): string {
  return URL.parse(url)?.host ?? 'an unknown host'
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer)
      reject(new AcmeError('the service stops'))
    }
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', end)
      resolve()
    }, ms)
    if (signal.aborted) end()
    else signal.addEventListener('abort', end, { once: true })
  })
}
