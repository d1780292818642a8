import { lists } from './Lists'
import { objects } from './Objects'
import * as Reference from './Reference'
import {
  type Compiler,
  type Fault,
  fail,
  isOver,
  isTable,
  type Keyword,
  OverworkError,
  quietly,
  type Run,
  type Step,
  spend,
  stepsOf,
} from './Run'
import { numbers, texts, type, values } from './Scalars'

/**
 * JSON Schema (draft 2020-12, and the forms of older drafts for the same rules) for the input of
 * strangers. The work of a check is limited: with references and alternatives, it can be exponential
 * in the depth of the input. Each step takes units of a budget, and a check whose budget is used up
 * ends with a fault.
 */

/** The first `most` faults of a value that JSON.parse returned; empty when it fits. */
export type Check = (value: unknown, most: number) => readonly Fault[]

/** About 10 ms. */
const unitsMax = 200_000
/** A reference to itself would overflow the stack before the budget is used up. */
const depthMax = 500

/** Throws Reference.SchemaError, and PatternError for a pattern of the schema. */
export function compile(schema: unknown): Check {
  const step = createCompiler(schema).step(schema)
  return (value, most) => {
    const run: Run = { units: unitsMax, depth: 0, path: [], faults: [], most }
    try {
      step(value, run, undefined)
      return run.faults
    } catch (error) {
      if (!(error instanceof OverworkError)) throw error
      return [{ name: '', reason: 'takes too many steps to check' }]
    }
  }
}

function createCompiler(root: unknown): Compiler {
  const known = new Map<object, Step>()
  const tracks = JSON.stringify(root)?.includes('"unevaluated') ?? false
  const compiler: Compiler = {
    root,
    step(schema) {
      if (schema === false) return (_, run) => fail(run, 'is not allowed')
      if (!isTable(schema)) return () => true
      const made = known.get(schema)
      if (made !== undefined) return made
      let steps: readonly Step[] = []
      const step: Step = (value, run, seen) => {
        spend(run, 1)
        if (++run.depth > depthMax) throw new OverworkError()
        const own = tracks ? new Set<string | number>() : undefined
        let fits = true
        for (const each of steps) {
          if (each(value, run, own)) continue
          fits = false
          if (isOver(run)) break
        }
        run.depth--
        if (fits && seen) for (const each of own ?? []) seen.add(each)
        return fits
      }
      // Before its keywords, because one of them may refer to it.
      known.set(schema, step)
      steps = keywords
        .map((keyword) => keyword(schema, compiler))
        .filter((each) => each !== undefined)
      return step
    },
  }
  return compiler
}

const reference: Keyword = (schema, compiler) => {
  const to = schema.$ref ?? schema.$dynamicRef ?? schema.$recursiveRef
  return to === undefined ? undefined : compiler.step(Reference.resolve(compiler.root, to))
}

const alternatives: Keyword = (schema, compiler) => {
  const all = stepsOf(compiler, schema.allOf)
  const any = stepsOf(compiler, schema.anyOf)
  const one = stepsOf(compiler, schema.oneOf)
  const not = schema.not === undefined ? undefined : compiler.step(schema.not)
  if (!all && !any && !one && !not) return undefined
  return (value, run, seen) => {
    let fits = true
    for (const step of all ?? []) {
      if (!step(value, run, seen)) fits = false
      if (!fits && isOver(run)) return false
    }
    const isFit = (step: Step) => quietly(run, step, value, seen)
    // With `seen` all of them, because each that fits describes members.
    if (any && !(seen ? any.filter(isFit).length > 0 : any.some(isFit)))
      fits = fail(run, 'fits none of its forms')
    if (one && one.filter(isFit).length !== 1) fits = fail(run, 'must fit exactly one of its forms')
    if (not && quietly(run, not, value, undefined)) fits = fail(run, 'has a form that is excluded')
    return fits
  }
}

const condition: Keyword = (schema, compiler) => {
  if (schema.if === undefined) return undefined
  const when = compiler.step(schema.if)
  const then = compiler.step(schema.then)
  const otherwise = compiler.step(schema.else)
  return (value, run, seen) =>
    (quietly(run, when, value, seen) ? then : otherwise)(value, run, seen)
}

/** In this order: of a long input only the first fault is named. */
const keywords: readonly Keyword[] = [
  type,
  values,
  reference,
  numbers,
  texts,
  alternatives,
  condition,
  lists,
  objects,
]
