import { createPrivateKey, generateKeyPairSync } from 'node:crypto'
import * as Certificate from './Certificate'
import { AcmeError, type Answer, type Client, reasonOf } from './client'
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
