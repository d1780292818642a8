import { createPrivateKey, X509Certificate } from 'node:crypto'

/** A certificate with its private key, as it is stored and served. */
export type Certificate = {
  /** PEM. */
  key: string
  /** PEM: the certificate, then its issuers. */
  chain: string
  /** DNS names, lower case. */
  domains: readonly string[]
  /** Unix ms. */
  validFrom: number
  validTo: number
}

/** The text is no certificate with its key. The message contains nothing of the text. */
export class CertificateError extends Error {
  override readonly name = 'CertificateError'
}

const certificates = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g
const privateKey = /-----BEGIN PRIVATE KEY-----[^-]+-----END PRIVATE KEY-----/

/** Reads the text of `serialize`. Throws `CertificateError`. */
export function parse(text: string): Certificate {
  const [first, ...issuers] = text.match(certificates) ?? []
  const [key] = privateKey.exec(text) ?? []
  if (first === undefined) throw new CertificateError('it contains no certificate')
  if (key === undefined) throw new CertificateError('it contains no private key')
  try {
    const leaf = new X509Certificate(first)
    if (!leaf.checkPrivateKey(createPrivateKey(key)))
      throw new CertificateError('its private key is not that of its certificate')
    // A server cannot listen with a chain that has a damaged certificate.
    for (const issuer of issuers) new X509Certificate(issuer)
    const names = leaf.subjectAltName?.matchAll(/DNS:([^,\s]+)/g) ?? []
    return {
      key: `${key}\n`,
      chain: `${[first, ...issuers].join('\n')}\n`,
      domains: [...names].map(([, name = '']) => name.toLowerCase()),
      validFrom: Date.parse(leaf.validFrom),
      validTo: Date.parse(leaf.validTo),
    }
  } catch (error) {
    if (error instanceof CertificateError) throw error
    throw new CertificateError('its certificate or its private key is damaged')
  }
}

/** The key first, then the chain: one file, so that the two cannot differ. */
export function serialize({ key, chain }: Pick<Certificate, 'key' | 'chain'>): string {
  return `${key.trim()}\n${chain.trim()}\n`
}

/** The domains that a certificate is not for. */
export function missing({ domains }: Certificate, wanted: readonly string[]): string[] {
  return wanted.filter((domain) => !domains.includes(domain))
}

/** Part of the lifetime that is left when a certificate is renewed. */
const remainder = 1 / 3
/** The renewals of many services are spread over this part of the lifetime before that. */
const spread = 1 / 30

/** When to renew, unix ms. `random`: from 0 to 1, the same for each call about one certificate. */
export function renewAt({ validFrom, validTo }: Certificate, random: number): number {
  return validTo - (validTo - validFrom) * (remainder + spread * random)
}

/** Whether a renewal is so late that an operator must know: half of its time has passed. */
export function isLate({ validFrom, validTo }: Certificate, now: number): boolean {
  return now > validTo - ((validTo - validFrom) * remainder) / 2
}
