import { createPrivateKey, generateKeyPairSync, sign } from 'node:crypto'

/** A fresh self-signed certificate for one host name, as PEM; it is its own authority. */
export function certificate(host: string): { key: string; cert: string } {
  const keys = generateKeyPairSync('ec', {
    namedCurve: 'P-256',
    publicKeyEncoding: { type: 'spki', format: 'der' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  })
  const ecdsaWithSha256 = der(0x30, der(0x06, hex('2a8648ce3d040302')))
  const commonName = der(0x30, der(0x06, hex('550403')), der(0x0c, Buffer.from(host)))
  const name = der(0x30, der(0x31, commonName))
  const validity = der(0x30, time('20200101000000Z'), time('21200101000000Z'))
  const alternatives = der(0x30, der(0x82, Buffer.from(host)))
  const extension = der(0x30, der(0x06, hex('551d11')), der(0x04, alternatives))
  const body = der(
    0x30,
    der(0xa0, der(0x02, hex('02'))),
    der(0x02, hex('01')),
    ecdsaWithSha256,
    name,
    validity,
    name,
    keys.publicKey,
    der(0xa3, der(0x30, extension)),
  )
  const signature = sign('sha256', body, createPrivateKey(keys.privateKey))
  const full = der(0x30, body, ecdsaWithSha256, der(0x03, hex('00'), signature))
  // No blank line at the end, which readers of PEM refuse.
  const lines = full.toString('base64').match(/.{1,64}/g) ?? []
  const cert = `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`
  return { key: keys.privateKey, cert }
}

function der(tag: number, ...parts: Uint8Array[]): Buffer {
  const content = Buffer.concat(parts)
  const { length } = content
  if (length < 128) return Buffer.concat([Buffer.from([tag, length]), content])
  const size = length < 256 ? [0x81, length] : [0x82, length >> 8, length & 255]
  return Buffer.concat([Buffer.from([tag, ...size]), content])
}

function time(text: string): Buffer {
  return der(0x18, Buffer.from(text))
}

function hex(text: string): Buffer {
  return Buffer.from(text, 'hex')
}
