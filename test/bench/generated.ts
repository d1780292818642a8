import type { Config } from '../../src/config/Config'
import { format, parseConfig } from '../../src/config/merchants'
import { shippedEnv, shippedText } from './shipped'

/** A catalogue of so many merchants with so many routes each. */
export type Size = { merchants: number; routes: number }

/** merchants.toml with the shipped service and networks, and a catalogue of that size. */
export function generatedText({ merchants, routes }: Size): string {
  const [head = ''] = shippedText().split('[[merchants]]')
  const parts = [head]
  for (let i = 0; i < merchants; i++) {
    parts.push(`[[merchants]]
slug = "merchant-${i}"
title = "Merchant ${i}"
tag = "Data"
description = "Everything that merchant ${i} knows."
upstream = "https://api-${i}.example.com"
`)
    for (let j = 0; j < routes; j++) parts.push(routeText(j))
  }
  return parts.join('\n')
}

function routeText(j: number): string {
  return `[[merchants.routes]]
path = "/data/${j}"
methods = ["GET", "POST"]
price = "0.005"
summary = "Data ${j} of a place"
description = "What is known of a place, in the way number ${j}."
upstream_path = "/v1/data/${j}"
[[merchants.routes.params]]
name = "latitude"
schema = { type = "number", minimum = -90, maximum = 90 }
[[merchants.routes.params]]
name = "longitude"
schema = { type = "number", minimum = -180, maximum = 180 }
`
}

/** Every path that is for sale, in file order. */
export function generatedPaths({ merchants, routes }: Size): string[] {
  return Array.from({ length: merchants }, (_, i) =>
    Array.from({ length: routes }, (_, j) => `/m/merchant-${i}/data/${j}`),
  ).flat()
}

/** The generated file on these RPC URLs by network id; throws with its faults. */
export function generatedConfig(
  size: Size,
  rpcUrls: Readonly<Record<string, string>> = {},
  text = generatedText(size),
): Config {
  const { config, faults } = parseConfig(text, {
    file: 'generated.toml',
    env: shippedEnv,
    overrides: {
      rpcUrls,
      baseUrl: 'http://localhost',
      listen: '127.0.0.1:0',
      // The discard port: no measured request reaches an upstream.
      upstream: (url) => new URL(url.pathname + url.search, 'http://127.0.0.1:9'),
    },
  })
  if (config === undefined) throw new Error(faults.map(format).join('\n'))
  return config
}
