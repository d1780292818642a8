import type { Param, Route } from '../config/Config'

/** One described segment of a route's tail. */
export type Segment = {
  param: Param
  /** Name in the path template; the text of a literal. */
  name: string
  /** Fixed text around the value, inside the segment. */
  prefix: string
  suffix: string
  /** A literal segment: the parameter's schema is a string constant. */
  isLiteral: boolean
  /** Takes this and all further segments: the parameter named `tail`. */
  isRest: boolean
}

/**
 * The segments of a tail. The route's tail parameters describe them in order. A name such as
 * `{cik}.json` fixes the text around the value, and `schema = { const = "indicator" }` fixes a
 * whole segment. Segments after the described ones are forwarded unchanged, unless the tail is exact.
 */
export function segmentsOf(route: Route): Segment[] {
  return route.params
    .filter((param) => param.in === 'tail')
    .map((param) => {
      const [, prefix = '', inner, suffix = ''] = /^(.*)\{([^{}]+)\}(.*)$/.exec(param.name) ?? []
      const constant = param.schema.const
      const isLiteral = typeof constant === 'string'
      const name = isLiteral ? constant : (inner ?? param.name)
      return { param, name, prefix, suffix, isLiteral, isRest: name === 'tail' && !isLiteral }
    })
}

/** The segment in the form of a path template. */
export function templateOf(segment: Segment): string {
  if (segment.isLiteral) return encodeURIComponent(segment.name)
  return `${segment.prefix}{${segment.name}}${segment.suffix}`
}
