import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { join } from 'node:path'
import { replaceFile } from '../config/durable'
import { codeOf, EnvironmentError, readPrivate } from '../config/env'
import type { Registry } from '../http/metrics'
import type { Log } from '../log'
import * as Certificate from './Certificate'
import * as Jws from './Jws'
import { AcmeError, type Challenges, connect, order } from './order'

type CertificatesOptions = {
  /** DNS names, lower case; the first is the service's own. */
  domains: readonly string[]
  dataDir: string
  directoryUrl: string
  ca?: string | undefined
  /** Mail address for the CA; read for each order. */
  contact: () => string | undefined
  challenges: Challenges
  /** Serves new connections with a certificate. May throw; it is called again then. */
  serve(certificate: Certificate.Certificate): void
  registry: Registry
  /** Unix ms. */
  now: () => number
  log: Log
  /** Interval between two checks of the certificate's age, ms. */
  checkMs?: number | undefined
}

export type Certificates = {
  /** Serves the stored certificate, if one is for any of the domains. Throws what `serve` throws. */
  restore(): void
  /** Orders and renews from now on. */
  start(): void
  /** Ends an order in progress. */
  stop(): Promise<void>
  /** Domains that cannot be reached over HTTPS, or soon cannot, with the reason. */
  faults(): readonly { domain: string; reason: string }[]
}

/** What is known of the certificate. */
type State = {
  certificate: Certificate.Certificate | undefined
  isServed: boolean
  isStored: boolean
  /** Spreads the renewals of many services. */
  random: number
  /** Failed orders since the last one that succeeded. */
  failures: number
  /** Reason of the last failure since then. */
  reason: string | undefined
  /** No order before this time, unix ms. */
  notBefore: number
}

const minute = 60_000
const hour = 60 * minute
/**
 * Waits after failed orders. Let's Encrypt refuses a domain after five failed challenges in an hour,
 * and permits another one each 12 minutes: https://letsencrypt.org/docs/rate-limits/
 */
const backoffMs = [minute, 5 * minute, 15 * minute, 30 * minute, hour, 2 * hour, 4 * hour, 6 * hour]
/** Waits of services that failed together differ by up to this part. */
const jitter = 0.1
/** Least time between two certificates, also where a wrong clock makes a new one seem old. */
const restMs = 12 * hour
/** Longest wait that a CA may require, ms. */
const retryAfterMaxMs = 7 * 24 * hour

/** Keeps a certificate for the domains in the data directory, and renews it. */
export function createCertificates(options: CertificatesOptions): Certificates {
  const { domains, dataDir, now, log, checkMs = minute } = options
  const state: State = {
    certificate: undefined,
    isServed: false,
    isStored: true,
    random: Math.random(),
    failures: 0,
    reason: undefined,
    notBefore: 0,
  }
  const aborting = new AbortController()
  const orders = report(options, state)
  const finish = createFinish(options, state)
  let timer: ReturnType<typeof setInterval> | undefined
  let running: Promise<void> | undefined

  async function check(): Promise<void> {
    if (isDue(state, domains, now())) {
      const outcome = await renew(options, state, aborting.signal, finish)
      if (outcome !== undefined) orders.inc({ outcome })
    } else finish()
  }

  function tick(): void {
    running ??= check().finally(() => {
      running = undefined
    })
  }

  return {
    restore() {
      const found = restore(fileIn(dataDir), log)
      if (found === undefined) return
      // A certificate for other domains only is of no use.
      if (Certificate.missing(found, domains).length === domains.length) return
      options.serve(found)
      Object.assign(state, { certificate: found, isServed: true })
    },
    start() {
      timer = setInterval(tick, checkMs)
      timer.unref()
      tick()
    },
    async stop() {
      clearInterval(timer)
      aborting.abort()
      await running
    },
    faults: () => faultsOf(state, domains, now()),
  }
}

function fileIn(dataDir: string): string {
  return join(dataDir, 'certificate.pem')
}

/**
 * Orders a certificate and finishes it. Returns the outcome; undefined when the service stops. Never
 * throws.
 */
async function renew(
  options: CertificatesOptions,
  state: State,
  signal: AbortSignal,
  finish: () => void,
): Promise<'issued' | 'failed' | undefined> {
  const { domains, dataDir, now, log } = options
  try {
    const key = accountKey(join(dataDir, 'acme-account.key'), log)
    const client = await connect({ ...options, key, signal })
    await client.register(options.contact())
    const certificate = await order(client, domains, options.challenges)
    refuseWorse(certificate, state.certificate, now())
    const random = Math.random()
    Object.assign(state, { certificate, random, isServed: false, isStored: false })
    Object.assign(state, { failures: 0, reason: undefined, notBefore: now() + restMs })
    const expiresAt = new Date(certificate.validTo)
    const renewsAt = new Date(Certificate.renewAt(certificate, random))
    finish()
    log('certificate-issued', { domains, expiresAt, renewsAt })
    return 'issued'
  } catch (error) {
    if (signal.aborted) return undefined
    const waitMs = retryIn(error, state)
    state.failures++
    state.reason = reasonOf(error)
    state.notBefore = now() + waitMs
    const retryInSeconds = Math.round(waitMs / 1000)
    log('certificate-failed', { domains, reason: state.reason, retryInSeconds })
    return 'failed'
  }
}

/** Throws for a certificate that no client accepts, while the present one is valid. */
function refuseWorse(
  { validTo }: Certificate.Certificate,
  present: Certificate.Certificate | undefined,
  now: number,
): void {
  if (validTo > now || present === undefined || present.validTo <= now) return
  const ended = new Date(validTo).toISOString()
  throw new AcmeError(`the CA sent a certificate that ended at ${ended}`)
}

/**
 * Returns a function that serves and stores a new certificate. It is served at once, also when it
 * cannot be stored. The next call repeats what failed. A fault that lasts is logged once.
 */
function createFinish({ domains, dataDir, log, serve }: CertificatesOptions, state: State) {
  const told = new Map<string, string>()
  const attempt = (event: 'certificate-unsaved' | 'certificate-unserved', step: () => void) => {
    try {
      step()
      told.delete(event)
    } catch (error) {
      const reason = reasonOf(error)
      if (told.get(event) !== reason) log(event, { domains, reason })
      told.set(event, reason)
    }
  }
  return () => {
    const { certificate } = state
    if (certificate === undefined) return
    if (!state.isServed)
      attempt('certificate-unserved', () => {
        serve(certificate)
        state.isServed = true
      })
    if (!state.isStored)
      attempt('certificate-unsaved', () => {
        writePrivate(fileIn(dataDir), Certificate.serialize(certificate))
        state.isStored = true
      })
  }
}

/** Text for the log and for operators. Other errors than ours have only their code. */
function reasonOf(error: unknown): string {
  const isOurs = error instanceof AcmeError || error instanceof EnvironmentError
  return isOurs ? error.message : codeOf(error)
}

/** Whether a certificate must be ordered now. */
function isDue(state: State, domains: readonly string[], now: number): boolean {
  if (now < state.notBefore) return false
  const { certificate, random } = state
  if (certificate === undefined) return true
  if (Certificate.missing(certificate, domains).length > 0) return true
  return now >= Certificate.renewAt(certificate, random)
}

/** The wait before the next order, ms. */
function retryIn(error: unknown, { failures }: State): number {
  const asked = error instanceof AcmeError ? (error.retryAfterMs ?? 0) : 0
  const own = backoffMs[Math.min(failures, backoffMs.length - 1)] ?? hour
  return Math.max(Math.min(asked, retryAfterMaxMs), own * (1 + jitter * Math.random()))
}

function faultsOf(state: State, domains: readonly string[], now: number) {
  const { certificate, reason, failures } = state
  const why = reason === undefined ? '' : `: ${reason}`
  return domains.flatMap((domain) => {
    if (certificate === undefined || !certificate.domains.includes(domain))
      return [{ domain, reason: `no certificate yet${why}` }]
    if (certificate.validTo <= now) return [{ domain, reason: `its certificate expired${why}` }]
    if (failures > 0 && Certificate.isLate(certificate, now))
      return [{ domain, reason: `its certificate was not renewed${why}` }]
    return []
  })
}

/** The stored certificate. A damaged one is replaced by a new order. */
function restore(path: string, log: Log): Certificate.Certificate | undefined {
  const text = readPrivate(path)
  if (text === undefined) return undefined
  try {
    return Certificate.parse(text)
  } catch (error) {
    if (!(error instanceof Certificate.CertificateError)) throw error
    log('certificate-unreadable', { file: path, reason: error.message })
    return undefined
  }
}

/** The key of the account at the CA. It owns nothing, so a damaged one is replaced. */
function accountKey(path: string, log: Log): KeyObject {
  const text = readPrivate(path)
  try {
    if (text !== undefined) {
      const key = createPrivateKey(text)
      Jws.jwkOf(key)
      return key
    }
  } catch {
    log('certificate-unreadable', { file: path, reason: 'it contains no key on P-256' })
  }
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  writePrivate(path, privateKey.export({ type: 'pkcs8', format: 'pem' }).toString())
  return privateKey
}

/**
 * Writes a file that only its owner may read, durably. A reader, or a start after a crash, finds the
 * old text or the new one. Throws `EnvironmentError`.
 */
export function writePrivate(path: string, text: string): void {
  try {
    replaceFile(path, text)
  } catch (error) {
    throw new EnvironmentError(`${path} cannot be written (${codeOf(error)})`)
  }
}

function report({ registry, domains, now }: CertificatesOptions, state: State) {
  const expires = registry.gauge(
    'certificate_expires_seconds',
    'Seconds until the certificate of a domain expires; 0 without one.',
    ['domain'],
  )
  registry.onRender(() => {
    const { certificate } = state
    for (const domain of domains) {
      const isOurs = certificate?.domains.includes(domain) === true
      const leftMs = isOurs ? certificate.validTo - now() : 0
      expires.set(Math.max(0, Math.floor(leftMs / 1000)), { domain })
    }
  })
  return registry.counter('certificate_orders_total', 'Certificate orders by outcome.', ['outcome'])
}
